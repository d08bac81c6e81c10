"use strict";
// What a diagnosis of logs found: findings in order of evidence, waste, where attempts part, and what could not be said.
(() => {
  const T = window.Turnwise;
  const { el } = T;
  const KINDS = new Map([
    ["state", "What is done in this state decides"],
    ["result", "What this call returns decides"],
    ["tool", "A tool, or a call, that goes with failure"],
    ["error", "An error message that goes with failure"],
    ["waste", "Waste that goes with failure"],
  ]);
  const ASSOCIATED = new Set(["tool", "error", "waste"]); // attempts are compared as wholes
  const FORKS = 8; // how many are shown at once
  const PLACE = { part: "rollouts", iteration: 0 };

  const points = ({ value, low, high }, digits = 1) => {
    const [a, b, c] = [value, low, high].map((number) => T.number(+number.toFixed(digits)));
    return `${a} (${b} to ${c})`;
  };
  const compared = (found) => Object.values(found.compared).reduce((sum, count) => sum + count, 0);
  const share = ({ value, low, high }) => `${T.percent(value)} (${T.percent(low)} to ${T.percent(high)})`;
  const turnLink = (run, { id, t }) => T.link("attempts", { run, ...PLACE, id, turn: t || null });
  const treeLink = (run, { id, group, t }) => T.link("tree", { run, group, id, turn: t || null });
  // By task, its goal; by attempt, its number among the attempts at its task.
  const namesOf = async (run) => {
    const { rows } = await T.askOnce("batch", { run, ...PLACE });
    const goals = new Map(rows.group.map((group, n) => [group, T.goal({ goal: rows.goal[n], task: rows.task[n] || group })]));
    return { goals, numbers: new Map(rows.id.map((id, n) => [id, rows.place[n]])) };
  };
  const small = (value) => (value < 0.001 ? "below 0.001" : value.toPrecision(2));

  // One side of a comparison: what was done, and how many of these attempts won.
  const side = (mark, choice, words) =>
    el(
      "tr",
      null,
      el("td", { class: mark === "✓" ? "won" : "lost" }, mark, el("span", { class: "unseen" }, words)),
      el("td", { class: "n rate" }, `${choice.won} of ${choice.attempts} won`),
      el("td", { class: "rate" }, T.rail(choice.won / choice.attempts)),
      el("td", { class: "mono" }, el("div", { class: "clamp" }, choice.text || "(nothing)")),
    );
  const sides = (rows) => el("table", { class: "sides-of" }, el("tbody", null, rows));

  // Where the comparisons are: only numbers and names may differ in a state that several have in common.
  const about = ({ kind, scope, attempts, tasks }) => {
    const alike = scope === "similar" && (kind === "state" || kind === "result") ? "; numbers and names may differ (#)" : "";
    return `${T.times(attempts, "attempt")} at ${T.times(tasks, "task")}${alike}`;
  };
  const body = (finding, whole) => [
    el("h3", null, KINDS.get(finding.kind) ?? finding.kind, el("span", { class: "dim small" }, ` ${about(finding)}`)),
    finding.where ? el("p", { class: whole ? "where mono" : "where mono clamp" }, finding.where) : null,
    sides([side("✗", finding.worse, "worse"), side("✓", finding.better, "better")]),
  ];

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

  const facts = (found) =>
    el(
      "div",
      { class: "facts card" },
      fact("findings", found.findings.length, `of ${T.times(compared(found), "comparison")}`),
      fact("attempts", found.attempts.toLocaleString("en"), `at ${T.times(found.tasks, "task")}`),
      fact("won", T.percent(found.won / Math.max(1, found.attempts)), found.outcome === "none" ? "no outcome varies" : found.outcome),
      fact("turns", found.turns.toLocaleString("en"), `${T.number(+(found.turns / Math.max(1, found.attempts)).toFixed(1))} per attempt`),
    );

  const examples = (run, places) =>
    places.map((place, n) => el("a", { class: "button visit", href: turnLink(run, place) }, `example ${n + 1}`));

  // On a narrow screen, a row becomes a block whose lines are named by the head.
  const table = (names, rows) =>
    el(
      "div",
      { class: "card scroll" },
      el(
        "table",
        { class: "told" },
        el(
          "thead",
          null,
          el(
            "tr",
            null,
            names.map((name) => el("th", null, name)),
          ),
        ),
        el(
          "tbody",
          null,
          rows.map((row) =>
            el(
              "tr",
              null,
              row.map((part, at) => el("td", { "data-name": names[at] }, part)),
            ),
          ),
        ),
      ),
    );
  const clamp = (text, look) => el("div", { class: `clamp ${look ?? ""}` }, text);

  const section = (title, hint, content) => el("section", { class: "part" }, el("h2", null, title, " ", T.hint(title, hint)), content);

  // How far the outcomes of a fork are from those that would be if the choice did not matter.
  const spread = ({ choices }) => {
    const [won, all] = ["won", "attempts"].map((key) => choices.reduce((sum, choice) => sum + choice[key], 0));
    return choices.reduce((sum, choice) => sum + Math.abs(choice.won - (choice.attempts * won) / all), 0);
  };
  const forkRow = (run, goals) => (fork) => {
    const [place] = fork.turns;
    return [
      [clamp(goals.get(place?.group) ?? fork.task), place ? el("div", null, el("a", { href: treeLink(run, place) }, "the tree →")) : null],
      fork.t + 1,
      clamp(fork.where, "mono"),
      fork.choices.map(({ text, won, attempts }) =>
        clamp([el("span", { class: 2 * won >= attempts ? "won" : "lost" }, `${won} of ${attempts} `), text || "(nothing)"], "mono"),
      ),
    ];
  };
  const parting = (run, forks, goals) => {
    const sorted = [...forks].sort((a, b) => spread(b) - spread(a));
    const node = el("div", null);
    const draw = (count) =>
      T.show(
        node,
        table(["task", "turn", "state", "what they did there, and won"], sorted.slice(0, count).map(forkRow(run, goals))),
        count < forks.length ? el("button", { type: "button", onclick: () => draw(forks.length) }, `show all ${forks.length} tasks`) : null,
      );
    draw(FORKS);
    return section(
      "Where won and lost attempts part",
      "By task, the state where one action separates won from lost attempts the most, the clearest first. It describes, and tests nothing.",
      node,
    );
  };

  const sections = (run, found, goals) => [
    section(
      "What loses the tasks",
      `Findings in order of evidence: the one whose gain is large for certain comes first. The intervals hold together, and at most ${T.percent(found.level)} of reports without a cause contain any finding.`,
      found.findings.length
        ? el(
            "ol",
            { class: "findings" },
            found.findings.map((finding, n) => card(run, found, finding, n)),
          )
        : el("p", { class: "card dim" }, "Nothing stands out from chance. What these attempts are too few to say is listed below."),
    ),
    found.waste.length
      ? section(
          "Waste",
          "Turns that bring nothing new: an action again in a state where it led to the same state before, a call again with the same result, or the same call right after its error.",
          table(
            ["kind", "turns", "share of all turns", "attempts with it", "of these won", "examples"],
            found.waste.map((each) => [
              each.kind,
              each.turns.toLocaleString("en"),
              each.turns ? share(each.share) : "–",
              each.attempts.toLocaleString("en"),
              T.percent(each.attempts ? each.won / each.attempts : null),
              examples(run, each.examples),
            ]),
          ),
        )
      : null,
    found.forks.length ? parting(run, found.forks, goals) : null,
    found.unsaid.length
      ? section(
          "What could not be said",
          "What was not tested, why, and how many attempts at each task it would need.",
          table(
            ["what", "why", "attempts needed at each task"],
            found.unsaid.map(({ what, why, attempts }) => [what, why, attempts === null ? "–" : attempts.toLocaleString("en")]),
          ),
        )
      : null,
  ];

  // The overview of logs that were diagnosed.
  T.findings = async (root, run) => {
    const found = await T.askOnce("diagnosis", { run });
    const { goals } = await namesOf(run);
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
      sections(run, found, goals),
      T.file && T.file.attempts < T.file.kept
        ? el(
            "p",
            { class: "dim small" },
            `This file holds the texts of ${T.file.attempts} of ${T.file.kept} attempts; \`turnwise diagnose … --view\` shows all.`,
          )
        : null,
    );
  };

  // One finding: all choices, and the tree of a task in which it happened.
  T.views.set("finding", async (root, { run, n }) => {
    const found = await T.askOnce("diagnosis", { run });
    const { goals, numbers } = await namesOf(run);
    const finding = found.findings[Number(n)];
    if (!finding) throw new Error("There is no such finding.");
    const { difference } = finding;
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
    for (const place of finding.turns) {
      const name = `attempt ${numbers.get(place.id)}, turn ${place.t + 1}`;
      buttons.set(place, el("button", { type: "button", title: goals.get(place.group), onclick: () => open(place) }, name));
    }
    const step = (by, words) =>
      found.findings[Number(n) + by] ? el("a", { class: "button", href: T.link("finding", { run, n: Number(n) + by }) }, words) : null;
    T.show(
      root,
      el(
        "div",
        { class: "bar" },
        el("h1", null, `Finding ${Number(n) + 1}`),
        el("span", { class: "grow" }),
        step(-1, "‹ before"),
        step(1, "next ›"),
      ),
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
          `Within a task, the share of won attempts is higher by ${points({ value: 100 * difference.value, low: 100 * difference.low, high: 100 * difference.high }, 0)} points where ✓ was done. `,
          `Were that its effect, ${points(finding.gain)} more of 100 attempts would win. `,
          `The p of this comparison is ${small(finding.adjusted)}, with all ${T.number(compared(found))} accounted for. `,
          ASSOCIATED.has(finding.kind) ? "What goes with failure need not be its cause: attempts that fail are often longer." : null,
        ),
        finding.choices.length > 2
          ? [
              el("h3", null, "All that was done there"),
              sides(
                finding.choices.map((choice) =>
                  side(choice.text === finding.worse.text ? "✗" : choice.text === finding.better.text ? "✓" : "", choice, ""),
                ),
              ),
            ]
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
