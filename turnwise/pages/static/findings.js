"use strict";
// What a diagnosis of logs found: findings in order of evidence, waste, where attempts part, and what could not be said.
(() => {
  const T = window.Turnwise;
  const { el } = T;
  const KINDS = new Map([
    ["state", ["a choice", "In this state"]],
    ["result", ["a result", "After this call"]],
    ["tool", ["a tool", "Attempts that used"]],
    ["error", ["an error", "Attempts that saw"]],
    ["waste", ["waste", "Attempts with"]],
  ]);
  const SCOPES = new Map([
    ["task", "in one task"],
    ["equal", "at equal states of several tasks"],
    ["similar", "at states that are equal but for numbers and names"],
  ]);
  const PLACE = { part: "rollouts", iteration: 0 };

  const points = ({ value, low, high }) => `${T.number(+value.toFixed(1))} (${T.number(+low.toFixed(1))} to ${T.number(+high.toFixed(1))})`;
  const share = ({ value, low, high }) => `${T.percent(value)} (${T.percent(low)} to ${T.percent(high)})`;
  const turnLink = (run, { id, t }) => T.link("attempts", { run, ...PLACE, id, turn: t || null });
  const small = (value) => (value < 0.001 ? "below 0.001" : value.toPrecision(2));

  // One side of a comparison: what was done, and how many of these attempts won.
  const side = (mark, choice, words) =>
    el(
      "tr",
      null,
      el("td", { class: mark === "✓" ? "won" : "lost" }, mark, el("span", { class: "unseen" }, words)),
      el("td", { class: "mono clamp" }, choice.text || "(nothing)"),
      el("td", { class: "n rate" }, T.rail(choice.won / choice.attempts)),
      el("td", { class: "n rate" }, `${choice.won} of ${choice.attempts} won`),
    );

  const body = (finding, whole) => {
    const [kind, head] = KINDS.get(finding.kind) ?? [finding.kind, ""];
    return [
      el(
        "div",
        { class: "bar tight wrap" },
        T.chip(kind),
        el("span", { class: "dim small" }, `${T.times(finding.attempts, "attempt")} at ${T.times(finding.tasks, "task")}, ${SCOPES.get(finding.scope) ?? ""}`),
      ),
      el("p", { class: "dim small" }, head),
      el("p", { class: whole ? "where mono" : "where mono clamp" }, finding.where),
      el(
        "table",
        { class: "sides-of" },
        el("tbody", null, side("✗", finding.worse, "worse"), finding.better ? side("✓", finding.better, "better") : null),
      ),
    ];
  };

  // What it costs: tasks won per 100 attempts, with its interval, as a number and as a picture on the scale of all findings.
  const cost = (finding, most) => [
    el("b", null, `+${T.number(+finding.gain.value.toFixed(1))}`),
    el("span", { class: "dim small" }, "won per 100 attempts"),
    T.rail(...["value", "low", "high"].map((end) => Math.max(0, finding.gain[end]) / most)),
    el("span", { class: "dim small" }, `${T.number(+finding.gain.low.toFixed(1))} to ${T.number(+finding.gain.high.toFixed(1))}`),
  ];
  const largest = (found) => Math.max(1, ...found.findings.map(({ gain }) => gain.high));

  const card = (run, found, finding, n) =>
    el(
      "li",
      null,
      el(
        "a",
        { class: "card finding", href: T.link("finding", { run, n }) },
        el("span", { class: "rank" }, n + 1),
        el("div", { class: "what" }, body(finding)),
        el("div", { class: "cost" }, cost(finding, largest(found))),
      ),
    );

  const fact = (name, value, more) =>
    el("div", { class: "fact" }, el("span", { class: "dim" }, name), el("b", null, value), el("span", { class: "dim" }, more));

  const facts = (found) => {
    const compared = Object.values(found.compared).reduce((sum, count) => sum + count, 0);
    return el(
      "div",
      { class: "facts card" },
      fact("findings", found.findings.length, `of ${T.times(compared, "comparison")}`),
      fact("attempts", found.attempts.toLocaleString("en"), `at ${T.times(found.tasks, "task")}`),
      fact("won", T.percent(found.won / Math.max(1, found.attempts)), found.outcome === "none" ? "no outcome varies" : found.outcome),
      fact("turns", found.turns.toLocaleString("en"), `${T.number(+(found.turns / Math.max(1, found.attempts)).toFixed(1))} per attempt`),
    );
  };

  const examples = (run, places) =>
    places.map((place, n) => el("a", { class: "button visit", href: turnLink(run, place) }, `example ${n + 1}`));

  const table = (names, rows) =>
    el(
      "div",
      { class: "card scroll" },
      el("table", { class: "told" }, el("thead", null, el("tr", null, names.map((name) => el("th", null, name)))), el("tbody", null, rows)),
    );

  const section = (title, hint, content) => el("section", { class: "part" }, el("h2", null, title, " ", T.hint(title, hint)), content);

  const sections = (run, found) => [
    section(
      "What loses the tasks",
      `Findings in order of evidence: the one whose gain is large for certain comes first. The intervals hold together, and at most ${T.percent(found.level)} of reports without a cause contain any finding.`,
      found.findings.length
        ? el("ol", { class: "findings" }, found.findings.map((finding, n) => card(run, found, finding, n)))
        : el("p", { class: "card dim" }, "Nothing stands out from chance. What these attempts are too few to say is listed below."),
    ),
    found.waste.length
      ? section(
          "Waste",
          "Turns that bring nothing new: a state again, the same call with the same result, the same call after its error.",
          table(
            ["kind", "turns", "share of all turns", "attempts with it", "of these won", ""],
            found.waste.map((each) =>
              el(
                "tr",
                null,
                el("td", null, each.kind),
                el("td", null, each.turns.toLocaleString("en")),
                el("td", null, share(each.share)),
                el("td", null, each.attempts),
                el("td", null, T.percent(each.attempts ? each.won / each.attempts : null)),
                el("td", null, examples(run, each.examples)),
              ),
            ),
          ),
        )
      : null,
    found.forks.length
      ? section(
          "Where won and lost attempts part",
          "By task, the earliest state from which attempts that won and attempts that lost went different ways. It describes, and tests nothing.",
          table(
            ["task", "turn", "state", "what they did there", ""],
            found.forks.map((fork) =>
              el(
                "tr",
                null,
                el("td", { class: "clamp" }, fork.task),
                el("td", null, fork.t + 1),
                el("td", { class: "mono" }, el("div", { class: "clamp" }, fork.where)),
                el(
                  "td",
                  { class: "mono" },
                  fork.choices.map((choice) =>
                    el(
                      "div",
                      { class: "clamp" },
                      el("span", { class: 2 * choice.won >= choice.attempts ? "won" : "lost" }, `${choice.won}/${choice.attempts} `),
                      choice.text || "(nothing)",
                    ),
                  ),
                ),
                el(
                  "td",
                  null,
                  fork.turns
                    .slice(0, 1)
                    .map(({ id, group, t }) => el("a", { class: "button", href: T.link("tree", { run, group, id, turn: t || null }) }, "tree")),
                ),
              ),
            ),
          ),
        )
      : null,
    found.unsaid.length
      ? section(
          "What could not be said",
          "What was not tested, why, and how many attempts at each task it would need.",
          table(
            ["what", "why", "attempts at each task"],
            found.unsaid.map(({ what, why, attempts }) => el("tr", null, el("td", null, what), el("td", null, why), el("td", null, attempts ?? "–"))),
          ),
        )
      : null,
  ];

  // The overview of logs that were diagnosed.
  T.findings = async (root, run) => {
    const found = await T.askOnce("diagnosis", { run });
    T.show(
      root,
      el(
        "div",
        { class: "bar" },
        el("h1", null, run),
        el("span", { class: "grow" }),
        el("a", { class: "button main", href: T.link("attempts", { run }) }, "See the attempts →"),
      ),
      facts(found),
      sections(run, found),
      T.file && T.file.attempts < T.file.kept
        ? el("p", { class: "dim small" }, `This file holds the texts of ${T.file.attempts} of ${T.file.kept} attempts; \`turnwise diagnose … --view\` shows all.`)
        : null,
    );
  };

  // One finding: all choices, and the tree of a task in which it happened.
  T.views.set("finding", async (root, { run, n }) => {
    const found = await T.askOnce("diagnosis", { run });
    const finding = found.findings[Number(n)];
    if (!finding) throw new Error("There is no such finding.");
    const below = el("div", null);
    const buttons = new Map();
    const open = async (place) => {
      for (const [other, button] of buttons) button.setAttribute("aria-pressed", String(other === place));
      try {
        const group = await T.askOnce("group", { run, ...PLACE, group: place.group });
        T.show(below, T.tree(group, { run, ...PLACE }, place));
      } catch (error) {
        T.show(below, el("p", { class: "warning" }, error.message));
      }
    };
    finding.turns.forEach((place, at) =>
      buttons.set(place, el("button", { type: "button", onclick: () => open(place) }, `${at + 1}: ${place.group}, turn ${place.t + 1}`)),
    );
    const step = (by, words) =>
      found.findings[Number(n) + by] ? el("a", { class: "button", href: T.link("finding", { run, n: Number(n) + by }) }, words) : null;
    T.show(
      root,
      el("div", { class: "bar" }, el("h1", null, `Finding ${Number(n) + 1}`), el("span", { class: "grow" }), step(-1, "‹ before"), step(1, "next ›")),
      el(
        "section",
        { class: "card finding" },
        el("div", { class: "what" }, body(finding, true)),
        el("div", { class: "cost" }, cost(finding, largest(found))),
      ),
      el(
        "section",
        { class: "card" },
        el(
          "p",
          null,
          `With the better choice, the share of won attempts of a task is higher by ${T.number(+(100 * finding.difference.value).toFixed(0))} points `,
          `(${T.number(+(100 * finding.difference.low).toFixed(0))} to ${T.number(+(100 * finding.difference.high).toFixed(0))}). `,
          `Were that difference its effect, ${points(finding.gain)} more of 100 attempts would win. `,
          `The probability of such a difference by chance is ${small(finding.adjusted)}, with all comparisons accounted for.`,
        ),
        finding.choices.length
          ? el(
              "table",
              { class: "sides-of" },
              el("caption", { class: "unseen" }, "All choices"),
              el(
                "tbody",
                null,
                finding.choices.map((choice) =>
                  side(choice.text === finding.worse.text ? "✗" : choice.text === finding.better?.text ? "✓" : "", choice, ""),
                ),
              ),
            )
          : null,
      ),
      finding.turns.length
        ? el("div", { class: "bar wrap where-bar" }, el("h2", null, "Where it happened"), [...buttons.values()])
        : el("p", { class: "dim" }, "No single turn shows it."),
      below,
    );
    if (finding.turns.length) await open(finding.turns[0]);
    return {
      key: ({ key }) => {
        const to = Number(n) + ({ l: 1, ArrowRight: 1, h: -1, ArrowLeft: -1 }[key] ?? 0);
        if (to === Number(n) || !found.findings[to]) return false;
        T.go("finding", { run, n: to });
        return true;
      },
    };
  });
})();
