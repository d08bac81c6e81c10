"use strict";
// One attempt, turn by turn, with its credit as colour; the map of its group; and why a turn got its credit.
(() => {
  const T = window.Turnwise;
  const { el } = T;
  const LONG = 700; // characters after which a text is folded

  const folded = (text, kind, drawn = (part) => part) => {
    const node = el("div", { class: kind });
    if (text.length <= LONG) return T.show(node, drawn(text));
    const more = el(
      "button",
      { type: "button", class: "quiet", onclick: () => T.show(node, drawn(text)) },
      `… ${text.length - LONG} more characters`,
    );
    return T.show(node, drawn(text.slice(0, LONG)), more);
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

  const screenshots = (turn) =>
    (turn.screenshots ?? []).map((source, place) => {
      const when = place ? "after" : "before";
      return el(
        "figure",
        { class: "shot" },
        el("img", { class: "screenshot", src: source, alt: `the page ${when} this action`, loading: "lazy" }),
        el("figcaption", { class: "dim small" }, when),
      );
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

  const plain = (turn, place) => [
    folded(turn.observation, "observation"),
    pictures(turn, place),
    screenshots(turn),
    turn.thought ? folded(turn.thought, "thought") : null,
    el(
      "div",
      { class: "foot" },
      el("div", { class: "action" }, el("span", { class: "prompt", "aria-hidden": "true" }, "› "), turn.action || "(nothing)"),
      details(turn),
    ),
  ];

  // A turn as a card. `pick` is called when a reader chooses it.
  T.turnCard = (attempt, turn, t, place, pick) =>
    el(
      "li",
      { class: "turn", id: `turn-${t}`, "data-turn": t, onclick: () => pick?.(t) },
      el("div", { class: "stripe", tint: [turn.credit, attempt.scales.credit], "aria-hidden": "true" }),
      el("div", { class: "said" }, attempt.shows === "terminal" ? T.terminal(attempt, turn, t, folded, details(turn)) : plain(turn, place)),
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
        T.creditChip(turn.credit, attempt.scales.credit, attempt.split ? "credit: the sum of step and episode credit, each by its weight" : "credit"),
        attempt.split
          ? el(
              "span",
              { class: "parts" },
              ["step", "episode"].filter((name) => turn[name] !== undefined).map((name) => el("span", null, `${name} ${T.signed(turn[name])}`)),
            )
          : null,
        turn.reward ? el("span", { class: "chip reward" }, `reward ${T.number(turn.reward)}`) : null,
        turn.valid === false ? el("span", { class: "chip bad" }, "not readable") : null,
        turn.visits > 1 ? el("span", { class: "dim small", title: "turns of the group that started from this state" }, `${turn.visits} visits`) : null,
      ),
    );

  T.attemptHead = (attempt) => [
    el("div", { class: "bar tight" }, T.outcome(attempt.success), el("h2", { class: "task" }, T.goal(attempt)), el("span", { class: "grow" })),
    el(
      "p",
      { class: "dim small" },
      `${T.attemptName(attempt)} · ${T.turns(attempt.turns.length)} · ended by: ${attempt.stop}${attempt.stop_detail ? ` (${attempt.stop_detail})` : ""} · reward ${T.number(attempt.reward)}${attempt.type ? ` · ${attempt.type}` : ""}`,
    ),
    el("p", { class: "dim small id-line" }, `task ${attempt.task}`),
  ];

  T.outcome = (success) =>
    el("span", { class: `outcome ${success ? "won" : "lost"}` }, success ? "✓ solved" : "✗ not solved");

  const sign = (value) => (value === undefined || value === null ? "" : value > 0 ? "+" : value < 0 ? "−" : "·");
  const LEVELS = new Map([
    ["credit", "credit"],
    ["step", "step credit"],
    ["episode", "episode credit"],
  ]);
  // What can be shown: the credit and, if it is a sum, its parts.
  T.levels = (about) => [...LEVELS].filter(([name]) => Object.hasOwn(about.scales, name));

  // One of several, chosen with the mouse or with the arrow keys.
  T.oneOf = (label, options, value, onchange) =>
    el(
      "fieldset",
      { class: "one-of" },
      el("legend", null, label),
      options.map(([key, text]) =>
        el(
          "label",
          null,
          el("input", { type: "radio", name: label, value: key, checked: key === value, onchange: () => onchange(key) }),
          el("span", null, text),
        ),
      ),
    );

  const cellWords = (attempt, turn, t) =>
    [
      `${T.attemptName(attempt)}, turn ${t + 1}`,
      ...[...LEVELS].filter(([name]) => turn[name] !== undefined).map(([name, words]) => `${words} ${T.signed(turn[name])}`),
      turn.reward ? `reward ${T.number(turn.reward)}` : null,
      turn.valid === false ? "its response could not be read" : null,
      turn.visits > 1 ? `${turn.visits} turns of the group started from this state` : null,
    ]
      .filter(Boolean)
      .join("; ");

  // All attempts of the group, one cell per turn, coloured by credit or by one of its parts; the visits of the chosen state are framed.
  T.groupMap = (group, current, pick, level) => {
    const cells = new Map();
    const longest = group.attempts.reduce((most, attempt) => Math.max(most, attempt.turns.length), 0);
    const rows = group.attempts.map((attempt, place) => {
      const line = attempt.turns.map((turn, t) => {
        const words = cellWords(attempt, turn, t);
        const look = `cell${turn.valid === false ? " unread" : ""}${turn.reward ? " paid" : ""}`;
        const cell = el("button", { type: "button", class: look, tabindex: -1, tip: words, "aria-label": words, onclick: () => pick(attempt.id, t) });
        cells.set(`${place} ${t}`, { cell, turn, attempt, t, place });
        return cell;
      });
      return el(
        "div",
        { class: `line ${attempt.id === current ? "current" : ""}` },
        el(
          "button",
          { type: "button", class: "quiet who", tabindex: -1, title: `id ${attempt.id}`, onclick: () => pick(attempt.id, 0) },
          el("span", { class: attempt.success ? "won" : "lost" }, attempt.success ? "✓" : "✗"),
          ` attempt ${attempt.place}`,
        ),
        line,
      );
    });
    const numbers = Array.from({ length: longest }, (_, t) => el("span", { class: "cell-number" }, t === 0 || (t + 1) % 5 === 0 ? t + 1 : ""));
    const head = el("div", { class: "line map-head", "aria-hidden": "true" }, el("span", { class: "who" }, "turn →"), numbers);
    const node = el("div", { class: "map", role: "group", "aria-label": "The group: one line per attempt, one cell per turn" }, head, rows);
    const paint = (name) => {
      for (const { cell, turn } of cells.values()) {
        T.tint(cell, [turn[name], group.scales[name]]);
        cell.textContent = turn.valid === false ? "!" : sign(turn[name]);
      }
    };
    const mark = (id, t) => {
      const own = [...cells.values()].find((each) => each.attempt.id === id && each.t === t);
      for (const { cell, turn, attempt, t: at } of cells.values()) {
        const here = attempt.id === id && at === t;
        cell.classList.toggle("here", here);
        cell.tabIndex = here ? 0 : -1; // one stop for the tab key; the arrow keys go on from there
        cell.classList.toggle("same", own !== undefined && turn.state !== undefined && turn.state === own.turn.state);
      }
    };
    node.addEventListener("keydown", (event) => {
      const at = [...cells.values()].find(({ cell }) => cell === document.activeElement);
      const by = new Map(Object.entries({ ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] })).get(event.key);
      if (!at || !by) return;
      event.preventDefault();
      event.stopPropagation();
      const place = at.place + by[0];
      const turns = group.attempts[place]?.turns.length ?? 0;
      cells.get(`${place} ${by[0] ? Math.min(at.t, turns - 1) : at.t + by[1]}`)?.cell.focus();
    });
    paint(level);
    return { node, mark, paint };
  };

  // The colours of credit from bad to good; the numbers are those of what is shown.
  T.scale = (scale, name) =>
    scale
      ? el(
          "span",
          { class: "entry wide" },
          el(
            "span",
            { class: "scale" },
            [-1, -0.5, 0, 0.5, 1].map((share) => el("span", { tint: [share * scale, scale] }, T.signed(share * scale))),
          ),
          `${name}: blue and + above 0, orange and − below 0, · exactly 0; the deeper, the larger`,
        )
      : null;

  // What the colours and signs of the map mean.
  T.mapLegend = (scale, name) => {
    const cell = (look, text) => el("span", { class: `cell sample ${look}`, "aria-hidden": "true" }, text);
    const entry = (sample, words) => el("span", { class: "entry" }, sample, words);
    return el(
      "div",
      { class: "map-legend", role: "note", "aria-label": "What the marks mean" },
      T.scale(scale, name),
      entry(cell("here", ""), "the turn that is open"),
      entry(cell("same", ""), "started from the same state"),
      entry(cell("paid", ""), "was rewarded"),
      entry(cell("unread", "!"), "could not be read"),
      entry(el("span", { class: "won" }, "✓ "), "attempt solved its task"),
      entry(el("span", { class: "lost" }, "✗ "), "did not"),
    );
  };

  const turnHas = (group, name) => Object.hasOwn(group.scales, name);

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
    const [own, kind] = group.split && turnHas(group, "step") ? ["step", "step credit"] : ["credit", "credit"];
    const mean = (list, key) => {
      const values = list.map(({ turn }) => turn[key] ?? 0);
      const found = values.reduce((sum, value) => sum + value, 0) / values.length;
      const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      return Math.abs(found) < 1e-5 * largest ? 0 : found; // numbers come with six digits: what is less is their rounding
    };
    const sorted = [...actions]
      .map(([action, list]) => ({ action, list, back: mean(list, "return"), credit: mean(list, own) }))
      .sort((a, b) => b.back - a.back);
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
            el("th", { class: "n" }, "return ", T.hint("return", `rewards from here on, discounted by ${group.gamma} per turn`)),
            group.credited ? el("th", { class: "n" }, kind) : null,
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
              group.credited ? el("td", { class: "n" }, T.creditChip(credit, group.scales[own])) : null,
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
                      tip: `${T.attemptName(attempt)}, turn ${t + 1}: return ${T.number(turn.return)}${group.credited ? `, ${kind} ${T.signed(turn[own])}` : ""}`,
                      onclick: () => pick(attempt.id, t),
                    },
                    `${attempt.success ? "✓" : "✗"} ${attempt.place} turn ${t + 1}`,
                  ),
                ),
              ),
            ),
          ]),
        ),
      ),
      el("p", { class: "dim small" }, "Each box is a visit: ✓ or ✗ how its attempt ended, the attempt's number, and the turn."),
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
