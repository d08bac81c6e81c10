"use strict";
// Two runs side by side: the same curves, what differs in their recipes, and the same task in both.
(() => {
  const T = window.Turnwise;
  const { el } = T;

  const shownCharts = ["Success", "Reward", "Length", "Entropy", "Share of turns with step credit", "Tokens a second"];

  const differences = (a, b) => {
    const read = (found) => new Map(found.differs.map(([key, value, usual]) => [key, [value, usual]]));
    const [one, two] = [read(a), read(b)];
    return [...new Set([...one.keys(), ...two.keys()])]
      .map((key) => [key, one.get(key)?.[0] ?? two.get(key)[1] ?? "default", two.get(key)?.[0] ?? one.get(key)[1] ?? "default"])
      .filter(([, x, y]) => x !== y);
  };

  // A run's side of the table: which iteration of which part, and its attempts by task.
  class Side {
    constructor(run, about) {
      Object.assign(this, { run, about, part: about.evals.length ? "evals" : "rollouts" });
      this.iteration = (about[this.part] ?? []).at(-1);
    }
    get place() {
      return { run: this.run, part: this.part, iteration: this.iteration };
    }
    async load() {
      this.byTask = new Map();
      if (this.iteration === undefined) return;
      const { rows } = (this.batch = await T.askOnce("batch", this.place));
      rows.task.forEach((task, number) => this.byTask.set(task, [...(this.byTask.get(task) ?? []), number]));
    }
    chooser(letter, changed) {
      const kept = [
        ...this.about.evals.map((n) => [`evals ${n}`, `evaluation at ${n}`]),
        ...this.about.rollouts.map((n) => [`rollouts ${n}`, `training, iteration ${n}`]),
      ].reverse();
      return T.choice(`${letter}: ${this.run}`, kept, `${this.part} ${this.iteration}`, (value) => {
        const [part, iteration] = value.split(" ");
        Object.assign(this, { part, iteration: Number(iteration) });
        changed();
      });
    }
    won(task) {
      const numbers = this.byTask.get(task);
      return numbers.filter((number) => this.batch.rows.success[number]).length / numbers.length;
    }
    mark(task) {
      const numbers = this.byTask.get(task);
      const { success, turns } = this.batch.rows;
      if (numbers.length === 1)
        return el(
          "span",
          { title: `${turns[numbers[0]]} turns` },
          el("span", { class: success[numbers[0]] ? "won" : "lost" }, success[numbers[0]] ? "✓" : "✗"),
          el("span", { class: "dim" }, ` ${turns[numbers[0]]}`),
        );
      return el("span", null, `${numbers.filter((number) => success[number]).length} of ${numbers.length}`);
    }
  }

  class Tasks {
    constructor(sides, words) {
      Object.assign(this, { sides, task: words.task ?? null, wish: "", text: "", node: el("div", { class: "pair-box" }) });
    }
    async load() {
      try {
        await Promise.all(this.sides.map((side) => side.load()));
        this.draw();
      } catch (error) {
        T.show(this.node, el("p", { class: "warning" }, error.message));
      }
    }
    get shared() {
      const [a, b] = this.sides;
      return [...a.byTask.keys()].filter((task) => b.byTask.has(task));
    }
    fits(task) {
      const [a, b] = this.sides.map((side) => side.won(task));
      const kind = { "": true, differ: a !== b, a: a > b, b: b > a, none: a === 0 && b === 0 }[this.wish];
      return kind && task.toLowerCase().includes(this.text.toLowerCase());
    }
    draw() {
      const [a, b] = this.sides;
      this.body = el("tbody", null);
      this.texts = el("div", { class: "pair" });
      this.count = el("span", { class: "dim" });
      T.show(
        this.node,
        el(
          "div",
          { class: "bar tight wrap" },
          el("h2", null, "The same task in both"),
          a.chooser("A", () => this.load()),
          b.chooser("B", () => this.load()),
          T.choice(
            "show",
            [
              ["", "all"],
              ["differ", "different ends"],
              ["a", "A better"],
              ["b", "B better"],
              ["none", "neither solved"],
            ],
            this.wish,
            (value) => ((this.wish = value), this.list()),
          ),
          el("input", {
            type: "search",
            placeholder: "task  ( / )",
            "aria-label": "Filter tasks",
            "data-search": true,
            value: this.text,
            oninput: (event) => ((this.text = event.target.value), this.list()),
          }),
          this.count,
        ),
        el(
          "div",
          { class: "pair-columns" },
          el(
            "div",
            { class: "card scroll tasks" },
            el(
              "table",
              { class: "runs" },
              el(
                "thead",
                null,
                el(
                  "tr",
                  null,
                  el("th", null, "task"),
                  el("th", { title: "outcome and turns" }, "A"),
                  el("th", { title: "outcome and turns" }, "B"),
                ),
              ),
              this.body,
            ),
          ),
          this.texts,
        ),
      );
      this.list();
    }
    list() {
      const tasks = this.shared.filter((task) => this.fits(task));
      const short = T.shortener(this.shared);
      this.count.textContent = `${tasks.length} of ${this.shared.length} shared tasks`;
      if (!tasks.includes(this.task)) this.task = tasks[0] ?? null;
      T.show(
        this.body,
        tasks.slice(0, 400).map((task) =>
          el(
            "tr",
            { class: task === this.task ? "chosen" : null },
            el(
              "td",
              null,
              el(
                "button",
                { type: "button", class: "quiet task-name", title: task, onclick: () => ((this.task = task), this.list()) },
                short(task),
              ),
            ),
            this.sides.map((side) => el("td", null, side.mark(task))),
          ),
        ),
      );
      this.open();
    }
    async open() {
      if (this.task === null)
        return T.show(
          this.texts,
          el(
            "p",
            { class: "empty-words" },
            this.shared.length ? "No task fits." : "These two played no task in common. Choose iterations of the same split and seed.",
          ),
        );
      const columns = await Promise.all(this.sides.map((side, index) => this.column(side, "AB"[index])));
      T.show(this.texts, columns);
      return null;
    }
    async column(side, letter) {
      const rows = side.batch.rows;
      const ids = side.byTask.get(this.task).map((number) => rows.id[number]);
      const box = el("section", { class: "card column", "aria-label": `${letter}: ${side.run}` });
      const show = async (id) => {
        const pickers =
          ids.length > 1
            ? el(
                "div",
                { class: "bar tight wrap" },
                ids.map((each) =>
                  el(
                    "button",
                    { type: "button", class: `visit ${each === id ? "here" : ""}`, onclick: () => show(each) },
                    `${rows.success[rows.id.indexOf(each)] ? "✓" : "✗"} ${each}`,
                  ),
                ),
              )
            : null;
        try {
          const attempt = await T.askOnce("attempt", { ...side.place, id });
          T.show(
            box,
            el("h3", null, el("a", { href: T.link("attempts", { ...side.place, id }) }, `${letter}: ${side.run}`)),
            T.attemptHead(attempt),
            pickers,
            el(
              "ol",
              { class: "turns" },
              attempt.turns.map((turn, t) => T.turnCard(attempt, turn, t, side.place)),
            ),
          );
        } catch (error) {
          T.show(box, el("h3", null, `${letter}: ${side.run}`), pickers, el("p", { class: "warning" }, error.message));
        }
      };
      await show(ids.find((id) => T.inFile("attempt", { ...side.place, id })) ?? ids[0]);
      return box;
    }
    next(by) {
      const tasks = this.shared.filter((task) => this.fits(task));
      const to = tasks[tasks.indexOf(this.task) + by];
      if (to === undefined) return;
      this.task = to;
      this.list();
      this.body.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
    }
  }

  T.views = T.views ?? {};
  T.views.compare = async (root, words) => {
    const known = (await T.ask("runs")).runs.map((card) => card.run);
    const a = words.a ?? known[0],
      b = words.b ?? known.find((run) => run !== a) ?? a;
    const curves = [new T.Curves(a), new T.Curves(b)];
    const [one, two] = await Promise.all([T.ask("run", { run: a }), T.ask("run", { run: b }), ...curves.map((each) => each.look())]);
    const cursor = new T.Cursor();
    const charts = T.CHARTS.filter(([title]) => shownCharts.includes(title)).map(([title, hint, wanted, settings]) => [
      new T.LineChart({ title, hint, cursor, ...settings }),
      wanted.slice(0, title.startsWith("Share") ? 1 : 2),
    ]);
    const update = () => {
      for (const [chart, wanted] of charts)
        chart.update([
          ...T.series(curves[0], wanted, { letter: "A", look: "c1" }),
          ...T.series(curves[1], wanted, { letter: "B", look: "c5" }),
        ]);
    };
    update();
    const choose = (letter, value, words) =>
      T.choice(
        letter,
        known.map((run) => [run, run]),
        value,
        (run) => T.go("compare", words(run)),
      );
    const recipes = el("section", { class: "card" });
    const tasks = new Tasks([new Side(a, one), new Side(b, two)], words);
    T.show(
      root,
      el(
        "div",
        { class: "bar wrap sides" },
        el("h1", null, "Two runs side by side"),
        choose("A", a, (run) => ({ a: run, b })),
        choose("B", b, (run) => ({ a, b: run })),
      ),
      el(
        "div",
        { class: "charts" },
        charts.map(([chart]) => chart.node),
      ),
      recipes,
      tasks.node,
    );
    Promise.all([T.ask("config", { run: a }), T.ask("config", { run: b })]).then(
      ([x, y]) => {
        const found = differences(x, y);
        T.show(
          recipes,
          el("h2", null, "What differs in their recipes"),
          found.length
            ? el(
                "table",
                { class: "recipe" },
                el("thead", null, el("tr", null, el("th", null, "key"), el("th", null, "A"), el("th", null, "B"))),
                el(
                  "tbody",
                  null,
                  found.map(([key, p, q]) =>
                    el("tr", null, el("td", null, key), el("td", { class: "mono" }, p), el("td", { class: "mono" }, q)),
                  ),
                ),
              )
            : el("p", { class: "dim" }, "Nothing: the same recipe."),
        );
      },
      (error) => T.notice(error.message),
    );
    await tasks.load();
    return {
      every: 3000,
      live: () => curves.some((each) => each.state === "running"),
      key: (event) => {
        const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
        if (!by) return false;
        tasks.next(by);
        return true;
      },
      poll: async () => {
        const news = await Promise.all(curves.map((each) => each.look()));
        if (news.some(Boolean)) update();
      },
    };
  };
})();
