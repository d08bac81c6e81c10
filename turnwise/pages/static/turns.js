"use strict";
// One attempt, turn by turn, with its credit as colour; the map of its group; and why a turn was rewarded.
(() => {
  const T = window.Turnwise;
  const { el } = T;
  const LONG = 700; // characters after which a text is folded

  const folded = (text, kind) => {
    const node = el("div", { class: kind });
    if (text.length <= LONG) return T.show(node, text);
    const more = el(
      "button",
      { type: "button", class: "quiet", onclick: () => T.show(node, text) },
      `… ${text.length - LONG} more characters`,
    );
    return T.show(node, text.slice(0, LONG), more);
  };

  T.creditChip = (value, scale, title) =>
    value === undefined ? null : el("span", { class: "credit", tint: [value, scale], title }, T.signed(value));

  const pictures = (turn, place) =>
    (turn.images ?? []).map((name) => {
      const source = place.part === "rollouts" ? T.picture({ run: place.run, iteration: place.iteration, name }) : null;
      return source
        ? el("img", { src: source, alt: "the picture that the agent saw", loading: "lazy" })
        : el("span", { class: "dim" }, "[a picture that is not kept here]");
    });

  const details = (turn) => {
    const info = turn.info && Object.keys(turn.info).length ? JSON.stringify(turn.info, null, 1) : "";
    if (!info && !turn.response) return null;
    return el(
      "details",
      { class: "raw" },
      el("summary", null, "raw"),
      turn.response ? el("pre", null, turn.response) : null,
      info ? el("pre", null, info) : null,
    );
  };

  // A turn as a card. `pick` is called where a reader chooses it.
  T.turnCard = (attempt, turn, t, place, pick) =>
    el(
      "li",
      { class: "turn", id: `turn-${t}`, "data-turn": t, onclick: () => pick?.(t) },
      el("div", { class: "stripe", tint: [turn.credit, attempt.scale], "aria-hidden": "true" }),
      el(
        "div",
        { class: "said" },
        folded(turn.observation, "observation"),
        pictures(turn, place),
        turn.thought ? folded(turn.thought, "thought") : null,
        el(
          "div",
          { class: "foot" },
          el("div", { class: "action" }, el("span", { class: "prompt", "aria-hidden": "true" }, "› "), turn.action || "(nothing)"),
          details(turn),
        ),
      ),
      el(
        "div",
        { class: "marks" },
        el(
          "button",
          {
            type: "button",
            class: "quiet t",
            "aria-label": `Turn ${t + 1}: why was it rewarded?`,
            onclick: (event) => (event.stopPropagation(), pick?.(t)),
          },
          `turn ${t + 1}`,
        ),
        T.creditChip(turn.credit, attempt.scale, "credit"),
        turn.step === undefined
          ? null
          : el("span", { class: "parts" }, `step ${T.signed(turn.step)}`, el("br"), `episode ${T.signed(turn.episode)}`),
        turn.reward ? el("span", { class: "chip reward" }, `reward ${T.number(turn.reward)}`) : null,
        turn.valid === false ? el("span", { class: "chip bad" }, "not readable") : null,
        turn.visits > 1 ? el("span", { class: "dim small" }, `${turn.visits} visits`) : null,
      ),
    );

  T.attemptHead = (attempt) => [
    el("div", { class: "bar tight" }, T.outcome(attempt.success), el("h2", { class: "task" }, attempt.task), el("span", { class: "grow" })),
    el(
      "p",
      { class: "dim small" },
      `attempt ${attempt.id} · ${attempt.turns.length} turns · ended by: ${attempt.stop}${attempt.stop_detail ? ` (${attempt.stop_detail})` : ""} · reward ${T.number(attempt.reward)}${attempt.type ? ` · ${attempt.type}` : ""}`,
    ),
  ];

  T.outcome = (success) =>
    el(
      "span",
      { class: `outcome ${success ? "won" : "lost"}`, title: success ? "solved" : "not solved" },
      success ? "✓ solved" : "✗ not solved",
    );

  // All attempts of the group, a cell a turn, coloured by credit; the visits of the chosen state are framed.
  T.groupMap = (group, current, pick) => {
    const cells = new Map();
    const rows = group.attempts.map((attempt, place) => {
      const line = attempt.turns.map((turn, t) => {
        const cell = el("button", {
          type: "button",
          class: "cell",
          tint: [turn.credit, group.scale],
          tabindex: -1,
          title: `attempt ${attempt.id}, turn ${t + 1}: credit ${T.signed(turn.credit)}`,
          "aria-label": `attempt ${attempt.id}, turn ${t + 1}, credit ${T.signed(turn.credit)}`,
          onclick: () => pick(attempt.id, t),
        });
        cells.set(`${place} ${t}`, { cell, turn, attempt, t });
        return cell;
      });
      return el(
        "div",
        { class: `line ${attempt.id === current ? "current" : ""}` },
        el(
          "button",
          { type: "button", class: "quiet who", onclick: () => pick(attempt.id, 0) },
          `${attempt.success ? "✓" : "✗"} ${attempt.id}`,
        ),
        line,
      );
    });
    const node = el(
      "div",
      { class: "map", role: "group", "aria-label": "The group: one line an attempt, one cell a turn, coloured by credit" },
      rows,
    );
    const mark = (id, t) => {
      const own = [...cells.values()].find((each) => each.attempt.id === id && each.t === t);
      for (const { cell, turn, attempt, t: at } of cells.values()) {
        cell.classList.toggle("here", attempt.id === id && at === t);
        cell.classList.toggle("same", own !== undefined && turn.state !== undefined && turn.state === own.turn.state);
      }
    };
    return { node, mark };
  };

  T.scaleLegend = (scale) =>
    el(
      "div",
      { class: "scale", "aria-hidden": "true" },
      [-1, -0.5, 0, 0.5, 1].map((share) => el("span", { tint: [share * scale, scale] }, T.signed(share * scale))),
    );

  // What the group did from one state: by action, best first, every visit a link.
  const fromHere = (group, state, current, pick) => {
    const known = group.states[state];
    if (!known) return null;
    const actions = new Map();
    for (const [place, t, action] of known.visits) {
      const turn = group.attempts[place].turns[t];
      if (!actions.has(action)) actions.set(action, []);
      actions.get(action).push({ attempt: group.attempts[place], t, turn });
    }
    const mean = (list, key) => list.reduce((sum, { turn }) => sum + (turn[key] ?? 0), 0) / list.length;
    const sorted = [...actions]
      .map(([action, list]) => ({ action, list, back: mean(list, "return"), credit: mean(list, group.split ? "step" : "credit") }))
      .sort((a, b) => b.back - a.back);
    const kind = group.split ? "step credit" : "credit";
    return [
      el(
        "h3",
        null,
        `What the group did from this state: ${sorted.length} action${sorted.length === 1 ? "" : "s"}, ${known.visits.length} visits`,
      ),
      el(
        "table",
        { class: "actions" },
        el(
          "thead",
          null,
          el(
            "tr",
            null,
            el("th", null, "action"),
            el("th", { class: "n", title: `rewards from here on, discounted by ${group.gamma} a turn` }, "return"),
            el("th", { class: "n", title: kind }, group.split ? "step" : "credit"),
          ),
        ),
        el(
          "tbody",
          null,
          sorted.map(({ action, list, back, credit }) => [
            el(
              "tr",
              { class: "sum" },
              el(
                "td",
                { class: "mono" },
                action || "(nothing)",
                list.length > 1 ? el("span", { class: "dim" }, ` × ${list.length}`) : null,
              ),
              el("td", { class: "n" }, T.number(+back.toFixed(3))),
              el("td", { class: "n" }, T.creditChip(credit, group.scale)),
            ),
            el(
              "tr",
              { class: "visits" },
              el(
                "td",
                { colspan: 3 },
                list.map(({ attempt, t, turn }) =>
                  el(
                    "button",
                    {
                      type: "button",
                      class: `visit ${attempt.id === current.id && t === current.t ? "here" : ""}`,
                      title: `return ${T.number(turn.return)}, ${kind} ${T.signed(group.split ? turn.step : turn.credit)}`,
                      onclick: () => pick(attempt.id, t),
                    },
                    `${attempt.success ? "✓" : "✗"} ${attempt.id} turn ${t + 1}`,
                  ),
                ),
              ),
            ),
          ]),
        ),
      ),
      known.text
        ? el("details", null, el("summary", null, "The state"), el("pre", null, known.text))
        : el("p", { class: "dim small" }, "The state has no text: it is known by the hash of its content."),
    ];
  };

  T.why = (root, attempt, t, group, pick) => {
    const turn = attempt.turns[t];
    if (!turn) return T.show(root, el("p", { class: "dim" }, "This attempt has no turns."));
    const [first, ...rest] = turn.why ?? [];
    return T.show(
      root,
      el("h2", null, "Why was this turn rewarded?"),
      first
        ? el("p", { class: "lead" }, first)
        : el("p", { class: "dim" }, attempt.credited ? "" : "No credit is given in an evaluation: it only measures."),
      rest.map((words) => el("p", { class: "reason" }, words)),
      group && turn.state !== undefined ? fromHere(group, String(turn.state), { id: attempt.id, t }, pick) : null,
    );
  };
})();
