"use strict";
// The attempts of a group as a tree: what they share is drawn once, and a branch begins where they part. Coloured by credit.
(() => {
  const T = window.Turnwise;
  const { el, svg } = T;
  const STEP = 24, // from turn to turn
    ROW = 26,
    MOST_ROWS = 160;

  // A node is a state and an action that attempts have in common, after everything before it in common.
  const grow = (group) => {
    const actions = new Map();
    for (const { visits } of Object.values(group.states)) for (const [place, t, action] of visits) actions.set(`${place} ${t}`, action);
    const top = { below: new Map(), size: group.attempts.length };
    group.attempts.forEach((attempt, place) => {
      let node = top;
      attempt.turns.forEach((turn, t) => {
        const action = actions.get(`${place} ${t}`) ?? "";
        const key = JSON.stringify([turn.state, action]);
        if (!node.below.has(key)) node.below.set(key, { t, action, state: turn.state, parent: node, below: new Map(), visits: [] });
        node = node.below.get(key);
        node.visits.push({ attempt, t, turn });
      });
    });
    return top;
  };

  const won = (visits) => visits.filter(({ attempt }) => attempt.success).length;
  const share = (node) => won(node.visits) / node.visits.length;
  const children = (node) => [...node.below.values()].sort((a, b) => b.visits.length - a.visits.length || share(b) - share(a));
  // What was done in the state of a node by attempts that share everything before it.
  const rivals = (node) => children(node.parent).filter(({ state }) => state === node.state);
  const isFork = (list) => list.some((node) => list.some((other) => other.state === node.state && share(other) !== share(node)));
  // The mean over the visits; numbers come with six digits, what is less is their rounding.
  const mean = (node, level) => {
    const values = node.visits.map(({ turn }) => turn[level] ?? 0);
    const sum = values.reduce((all, value) => all + value, 0);
    return Math.abs(sum) < 1e-5 * Math.max(...values.map(Math.abs)) ? 0 : sum / values.length;
  };
  const counts = (visits) => [
    won(visits) ? el("span", { class: "won" }, `✓ ${won(visits)} `) : null,
    won(visits) < visits.length ? el("span", { class: "lost" }, `✗ ${visits.length - won(visits)}`) : null,
  ];

  // A tool call in few words: its name and its arguments without their names.
  const brief = (action) => {
    const [, name, values] = /^(\S+) (\{[^]*\})$/.exec(action) ?? [];
    try {
      const parts = Object.values(JSON.parse(values)).map((value) => (typeof value === "string" ? value : JSON.stringify(value)));
      return `${name} ${parts.join(", ")}`;
    } catch {
      return action || "(nothing)"; // not such a call, or cut off
    }
  };

  // Rows from top to bottom: each is a part of the way on which no attempt leaves or ends. Branches of fewer than `least` attempts are left
  // out, except on the way to a turn.
  const rowsOf = (top, least, isOpen) => {
    const drawn = (node) => children(node).filter(({ visits }) => visits.length >= least || visits.some(isOpen));
    const rows = [];
    const waiting = drawn(top).reverse();
    while (waiting.length) {
      let node = waiting.pop();
      const row = { nodes: [node], from: node.parent, below: [] };
      for (;;) {
        node.row = rows.length;
        row.below = drawn(node);
        if (row.below.length !== 1 || row.below[0].visits.length < node.visits.length) break;
        row.nodes.push((node = row.below[0]));
      }
      rows.push(row);
      waiting.push(...row.below.reverse());
    }
    return rows.length <= MOST_ROWS || least > top.size ? { rows, least } : rowsOf(top, 2 * least, isOpen);
  };

  // What attempts did in a state, and how each of these ended.
  const choices = (node, group, level, choose) =>
    el(
      "table",
      { class: "actions" },
      el(
        "thead",
        null,
        el(
          "tr",
          null,
          ["action", "attempts", "won", "credit"].map((name, n) => el("th", { class: n ? "n" : null }, name)),
        ),
      ),
      el(
        "tbody",
        null,
        rivals(node).map((other) =>
          el(
            "tr",
            { class: `sum ${other === node ? "chosen" : ""}` },
            el(
              "td",
              { class: "mono" },
              el("button", { type: "button", class: "quiet mono", onclick: () => choose(other) }, other.action || "(nothing)"),
            ),
            el("td", { class: "n" }, other.visits.length),
            el("td", { class: "n" }, `${won(other.visits)} of ${other.visits.length}`),
            el("td", { class: "n" }, T.creditChip(mean(other, level), group.scales[level])),
          ),
        ),
      ),
    );

  // The tree and, below it, the node that is chosen. `place` says which run and iteration, `at` ({id, t}) which turn is open first.
  T.tree = (group, place, at) => {
    const top = grow(group);
    const isOpen = ({ attempt, t }) => attempt.id === at.id && t <= at.t;
    const { rows, least } = rowsOf(top, 1, isOpen);
    const total = group.attempts.length;
    const levels = T.levels(group);
    let level = levels.some(([name]) => name === "credit") ? "credit" : levels[0]?.[0];
    const cells = new Map();
    const labels = el("div", { class: "tree-labels" });
    const lines = svg("svg", { "aria-hidden": "true" });
    const graph = el("div", { class: "tree-graph" }, lines);
    const longest = rows.reduce((most, { nodes }) => Math.max(most, nodes[nodes.length - 1].t), 0);
    const x = (t) => STEP * t + STEP / 2,
      y = (row) => ROW * row + ROW / 2;
    const size = { width: STEP * (longest + 1) + 70, height: ROW * rows.length };
    for (const [name, value] of Object.entries(size)) {
      lines.setAttribute(name, value);
      graph.style[name] = `${value}px`;
    }
    const line = (visits, d) => lines.append(svg("path", { class: "branch", d, "stroke-width": 1 + (5 * visits.length) / total }));
    rows.forEach(({ nodes, from, below }, row) => {
      const [first] = nodes,
        last = nodes[nodes.length - 1];
      if (from !== top) line(first.visits, `M${x(from.t)} ${y(from.row)}V${y(row) - 8}q0 8 8 8H${x(first.t)}`);
      if (nodes.length > 1) line(first.visits, `M${x(first.t)} ${y(row)}H${x(last.t)}`);
      for (const node of nodes) {
        const parts = node === last && isFork(below);
        const words = `turn ${node.t + 1}: ${node.action || "(nothing)"}; ${node.visits.length} of ${total} attempts, ${won(node.visits)} won`;
        const cell = el("button", { type: "button", class: `cell ${parts ? "fork" : ""}`, tabindex: -1, onclick: () => choose(node) });
        cell.words = parts ? `${words}; after it, they part` : words;
        cell.style.left = `${x(node.t) - 10}px`;
        cell.style.top = `${y(row) - 9}px`;
        cells.set(node, cell);
        graph.append(cell);
      }
      const ended = last.visits.filter(({ attempt, t }) => attempt.turns.length === t + 1);
      if (ended.length) {
        const end = el("span", { class: "ended small", "aria-hidden": "true" }, counts(ended));
        end.style.left = `${x(last.t) + 14}px`;
        end.style.top = `${y(row) - 9}px`;
        graph.append(end);
      }
      labels.append(
        el(
          "button",
          { type: "button", class: "quiet", tabindex: -1, title: first.action, onclick: () => choose(first) },
          el("span", { class: "mono" }, brief(first.action)),
          el("span", { class: "counts" }, counts(first.visits)),
        ),
      );
    });
    const body = el("div", { class: "tree", role: "group", "aria-label": "The tree of the attempts" }, labels, graph);
    const detail = el("div", { class: "tree-detail" });
    const legend = el("div", null);
    const card = (attempt, t) => attempt.turns[t] && T.turnCard(attempt, attempt.turns[t], t, place);
    let chosen = null;

    const paint = () => {
      for (const [node, cell] of cells) {
        const value = level ? mean(node, level) : undefined;
        T.tint(cell, [value, group.scales[level]]);
        cell.textContent = value === undefined ? "" : value > 0 ? "+" : value < 0 ? "−" : "·";
        const words = value === undefined ? cell.words : `${cell.words}; ${new Map(levels).get(level)} ${T.signed(value)}`;
        T.tip(cell, words);
        cell.setAttribute("aria-label", T.visible(words));
      }
      T.show(legend, legendOf(group.scales[level], new Map(levels).get(level)));
    };
    const choose = async (node, focus) => {
      chosen = node;
      for (const [other, cell] of cells) {
        cell.classList.toggle("here", other === node);
        cell.classList.toggle("same", other.state === node.state && other !== node);
        cell.tabIndex = other === node ? 0 : -1;
      }
      const cell = cells.get(node);
      cell?.scrollIntoView({ block: "nearest", inline: "nearest" });
      if (focus) cell?.focus();
      const rest = rivals(node);
      const asked = node.visits.filter(({ attempt }) => T.inFile("attempt", { ...place, id: attempt.id }));
      const visit = asked.find(({ attempt, t }) => attempt.id === at.id && t === at.t) ?? asked[0];
      const attempt = visit && (await T.askOnce("attempt", { ...place, id: visit.attempt.id }));
      if (chosen !== node) return; // another one was chosen in the meantime
      T.show(
        detail,
        el(
          "div",
          null,
          el("h2", null, `Turn ${node.t + 1}: what was done here, and how it ended`),
          choices(node, group, level, (other) => choose(other)),
          el(
            "p",
            { class: "dim small" },
            `${T.times(
              rest.reduce((sum, other) => sum + other.visits.length, 0),
              "attempt",
            )} came to this state on the same way. Credit is a mean.`,
          ),
          el("h3", null, `${T.times(node.visits.length, "attempt")} with this action`),
          el(
            "p",
            null,
            node.visits.map(({ attempt: each, t }) =>
              el(
                "a",
                { class: "button visit", href: T.link("attempts", { ...place, id: each.id, turn: t || null }) },
                `${each.success ? "✓" : "✗"} attempt ${each.place}`,
              ),
            ),
          ),
        ),
        attempt
          ? el(
              "ol",
              { class: "turns" },
              [0, 1].map((more) => card(attempt, visit.t + more)),
            )
          : el("p", { class: "dim" }, "The texts of these attempts are not in the file."),
      );
    };
    body.addEventListener("keydown", (event) => {
      const near = chosen && rivals(chosen);
      const to = new Map([
        ["ArrowLeft", () => (chosen.parent === top ? null : chosen.parent)],
        ["ArrowRight", () => children(chosen)[0]],
        ["ArrowUp", () => near[near.indexOf(chosen) - 1]],
        ["ArrowDown", () => near[near.indexOf(chosen) + 1]],
      ]).get(event.key);
      if (!to || !chosen) return;
      event.preventDefault();
      event.stopPropagation();
      const node = to();
      if (cells.has(node)) choose(node, true);
    });
    paint();
    const start = [...cells.keys()].find((node) => node.visits.some(({ attempt, t }) => attempt.id === at.id && t === at.t));
    const begin = start ?? [...cells.keys()][0];
    if (begin) choose(begin);
    if (begin) requestAnimationFrame(() => body.scrollTo(x(begin.t) - 300, y(begin.row) - 200));
    const pick = T.oneOf("Colour by", levels, level, (name) => ((level = name), paint(), choose(chosen)));
    return [
      el(
        "section",
        { class: "card tree-box" },
        el(
          "h2",
          null,
          el("span", { class: "clamp" }, T.goal(group.attempts[0])),
          el("span", { class: "dim small" }, `${T.times(total, "attempt")}, ${won(group.attempts.map((attempt) => ({ attempt })))} won`),
        ),
        group.problem ? el("p", { class: "warning" }, group.problem) : null,
        levels.length > 1 ? pick : null,
        body,
        least > 1 ? el("p", { class: "dim small" }, `Branches of fewer than ${least} attempts are not drawn.`) : null,
        legend,
      ),
      el("section", { class: "card", "aria-live": "polite" }, detail),
    ];
  };

  const legendOf = (scale, name) => {
    const sample = (look, words) =>
      el("span", { class: "entry" }, el("span", { class: `cell sample ${look}`, "aria-hidden": "true" }), words);
    return el(
      "div",
      { class: "map-legend", role: "note", "aria-label": "What the marks mean" },
      T.scale(scale, name),
      sample("here", "the turn below"),
      sample("same", "the same state"),
      sample("fork", "attempts part here, and end differently"),
      el("span", { class: "entry" }, "the wider a line, the more attempts; ✓ won, ✗ lost"),
    );
  };

  T.views.set("tree", async (root, { run, part, iteration, group, id, turn }) => {
    const place = { run, part: part ?? "rollouts", iteration: Number(iteration ?? 0) };
    const found = await T.askOnce("group", { ...place, group });
    const [first] = found.attempts;
    T.show(root, el("div", { class: "bar" }, el("h1", null, first.task || group)), T.tree(found, place, { id, t: Number(turn ?? 0) }));
  });
})();
