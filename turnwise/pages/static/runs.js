"use strict";
// The list of runs: sort it, open one, or choose some to compare.
(() => {
  const T = window.Turnwise;
  const { el } = T;
  const COLUMNS = [
    ["run", "run"],
    ["algorithm", "algorithm"],
    ["environment", "environment"],
    ["seed", "seed"],
    ["iterations", "iterations"],
    ["before", "success before"],
    ["after", "success after"],
    ["state", "state"],
    ["touched", "last change"],
  ];
  const order = { key: "touched", down: true };
  const chosen = new Set();

  const compare = (a, b) => {
    const [x, y] = [a[order.key], b[order.key]];
    if (x === y) return a.run < b.run ? -1 : 1;
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return (x < y ? -1 : 1) * (order.down ? -1 : 1);
  };

  const bar = (share, [low, high] = []) =>
    el(
      "span",
      { class: "share" },
      el(
        "span",
        { class: "rail", title: low === null || low === undefined ? null : `95 % interval ${T.percent(low)} to ${T.percent(high)}` },
        T.rail(share, low, high),
      ),
      T.percent(share),
    );

  T.rail = (share, low, high) => {
    if (share === null || share === undefined) return null;
    const at = (value) => (60 * value).toFixed(1);
    return T.svg(
      "svg",
      { width: 62, height: 10, "aria-hidden": "true" },
      T.svg("rect", { class: "rail-bed", x: 1, y: 4, width: 60, height: 2 }),
      low === null || low === undefined
        ? null
        : T.svg("rect", { class: "rail-band", x: +at(low) + 1, y: 2, width: at(high - low), height: 6 }),
      T.svg("circle", { class: "rail-dot", cx: +at(share) + 1, cy: 5, r: 3 }),
    );
  };

  T.chip = (state) => el("span", { class: `chip ${state}` }, state);

  T.views.set("", async (root) => {
    const shown = { runs: [] };
    const body = el("tbody", null);
    const filter = el("input", {
      type: "search",
      placeholder: "filter runs  ( / )",
      "aria-label": "Filter runs",
      "data-search": true,
      oninput: () => draw(),
    });
    const both = el(
      "button",
      { type: "button", class: "main", onclick: () => T.go("compare", { runs: JSON.stringify([...chosen]) }) },
      "Compare",
    );
    const head = el("tr", null);
    const fits = () => {
      const wanted = filter.value.toLowerCase();
      return shown.runs.filter((card) =>
        [card.run, card.name, card.algorithm, card.environment, card.state].join(" ").toLowerCase().includes(wanted),
      );
    };
    const every = el("input", {
      type: "checkbox",
      "aria-label": "Choose all runs shown to compare",
      onchange: (event) => {
        for (const card of fits()) if (event.target.checked) chosen.add(card.run); else chosen.delete(card.run);
        draw();
      },
    });

    const pick = (card) => {
      if (chosen.has(card.run)) chosen.delete(card.run);
      else chosen.add(card.run);
      draw();
    };

    const row = (card) =>
      el(
        "tr",
        { class: chosen.has(card.run) ? "chosen" : null },
        el(
          "td",
          null,
          el("input", {
            type: "checkbox",
            checked: chosen.has(card.run),
            "aria-label": `Choose ${card.run} to compare`,
            onchange: () => pick(card),
          }),
        ),
        el("td", null, el("a", { href: T.link("run", { run: card.run }), class: "name" }, card.run)),
        el("td", null, card.algorithm),
        el("td", null, card.environment),
        el("td", { class: "n" }, card.seed),
        el("td", { class: "n" }, card.planned ? `${card.iterations} of ${card.planned}` : card.iterations),
        el("td", null, bar(card.before, card.before_interval)),
        el("td", null, bar(card.after, card.after_interval)),
        el("td", null, T.chip(card.state), card.problem ? el("span", { class: "bad-words small" }, ` ${card.problem}`) : null),
        el("td", { class: "dim" }, card.touched ? new Date(1000 * card.touched).toLocaleString("sv").slice(0, 16) : "–"),
      );

    const draw = () => {
      const cards = fits();
      T.show(
        head,
        el("th", null, every),
        COLUMNS.map(([key, title]) =>
          el(
            "th",
            { "aria-sort": order.key === key ? (order.down ? "descending" : "ascending") : "none" },
            el(
              "button",
              {
                type: "button",
                onclick: () => (Object.assign(order, { key, down: order.key === key ? !order.down : key !== "run" }), draw()),
              },
              title,
              order.key === key ? (order.down ? " ↓" : " ↑") : "",
            ),
          ),
        ),
      );
      T.show(body, cards.sort(compare).map(row));
      for (const run of chosen) if (!shown.runs.some((card) => card.run === run)) chosen.delete(run);
      both.disabled = chosen.size < 2;
      both.textContent = chosen.size < 2 ? "Compare (tick two or more)" : `Compare ${chosen.size} runs`;
      every.checked = cards.length > 0 && cards.every((card) => chosen.has(card.run));
      count.textContent = `${cards.length} of ${shown.runs.length}`;
    };

    const count = el("span", { class: "dim" });
    const look = async () => {
      const found = await T.ask("runs");
      const text = JSON.stringify(found);
      if (text === shown.text) return;
      Object.assign(shown, found, { text });
      draw();
    };
    await look();
    const [only, ...others] = shown.runs;
    if (only?.diagnosed && !others.length) return (T.go("run", { run: only.run }, true), T.findings(root, only.run));
    T.show(
      root,
      el("div", { class: "bar" }, el("h1", null, "Runs"), count, el("span", { class: "grow" }), filter, both),
      T.file
        ? el(
            "p",
            { class: "dim" },
            `This file holds ${T.file.attempts} of the ${T.file.kept} attempts of the iterations shown; \`turnwise view\` shows all.`,
          )
        : el("p", { class: "dim" }, shown.folder),
      shown.arena ? el("p", null, el("a", { href: "/arena" }, "Report of this arena")) : null,
      el(
        "p",
        { class: "dim small" },
        "Success is the share of held-out tasks solved, from 0 to 100 %: the dot is what was measured, the bar its 95 % interval over tasks.",
      ),
      el("div", { class: "card scroll" }, el("table", { class: "runs" }, el("thead", null, head), body)),
    );
    return { poll: look, every: 4000 };
  });
})();
