"use strict";
// Any number of runs: one curve per setting with its band over seeds, what differs in their recipes, and the same task in two of them.
(() => {
  const T = window.Turnwise;
  const { el } = T;
  const COLOURS = ["c1", "c5", "c3", "c4", "c2", "c6"];
  const wishes = { single: false };

  // title, what it means, metric, settings
  const CHARTS = [
    [
      "Success in evaluation",
      "Share of the held-out tasks solved. Line: mean over the seeds of a setting; band: its 95 % interval over seeds (Student's t). With one seed, or if seeds tie, the band is the interval over tasks.",
      "eval/success",
      { share: true, format: (v, more = 0) => T.percent(v, more), y: "share of tasks solved (%)", edges: ["eval/low", "eval/high"], dots: true },
    ],
    [
      "Success in training",
      "Share of the sampled attempts that solved their task.",
      "collect/success",
      { share: true, format: (v, more = 0) => T.percent(v, more), y: "share of attempts (%)" },
    ],
    ["Reward", "Mean reward of a sampled attempt.", "collect/reward", { y: "reward per attempt" }],
    ["Length", "Mean number of turns of a sampled attempt.", "collect/length", { y: "turns per attempt", zero: true }],
    ["Entropy", "Mean entropy of the tokens' distribution.", "learner/entropy", { y: "nats per token", zero: true }],
    [
      "Share of turns with step credit",
      "Turns that got step credit, for settings whose algorithm gives it.",
      "credit/step_credit_share",
      { share: true, format: (v, more = 0) => T.percent(v, more), y: "share of turns (%)", steps: true },
    ],
    ["Tokens per second", "Sampled tokens over the time of collecting.", "time/tokens_per_second", { y: "tokens per second", zero: true, positive: true }],
  ];

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
      rows.task.forEach((task, number) => (this.byTask.has(task) ? this.byTask.get(task).push(number) : this.byTask.set(task, [number])));
    }
    chooser(letter, changed) {
      const kept = [
        ...this.about.evals.map((n) => [`evals ${n}`, `evaluation at ${n}`]),
        ...this.about.rollouts.map((n) => [`rollouts ${n}`, `training, iteration ${n}`]),
      ].reverse();
      return T.choice(`iteration of ${letter}`, kept, `${this.part} ${this.iteration}`, (value) => {
        const [part, iteration] = value.split(" ");
        Object.assign(this, { part, iteration: Number(iteration) });
        changed();
      }, true);
    }
    goal(task) {
      return this.batch.rows.goal[this.byTask.get(task)[0]];
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
          { title: `${success[numbers[0]] ? "solved" : "not solved"} in ${T.turns(turns[numbers[0]])}` },
          el("span", { class: success[numbers[0]] ? "won" : "lost" }, success[numbers[0]] ? "✓" : "✗"),
          el("span", { class: "dim" }, ` ${T.turns(turns[numbers[0]])}`),
        );
      return el("span", null, `${numbers.filter((number) => success[number]).length} of ${numbers.length}`);
    }
  }

  class Tasks {
    constructor(runs, sides) {
      Object.assign(this, { runs, sides, task: null, wish: "", text: "", node: el("div", { class: "pair-box" }) });
    }
    // Which run is on a side.
    whose(index) {
      const options = this.runs.map((run) => [run, run]);
      return T.choice("AB"[index], options, this.sides[index].run, async (run) => {
        this.sides[index] = new Side(run, await T.ask("run", { run }));
        await this.load();
      });
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
      return kind && `${this.sides[0].goal(task) ?? ""} ${task}`.toLowerCase().includes(this.text.toLowerCase());
    }
    draw() {
      this.body = el("tbody", null);
      this.texts = el("div", { class: "pair" });
      this.count = el("span", { class: "dim" });
      T.show(
        this.node,
        el(
          "div",
          { class: "bar tight wrap" },
          el("h2", null, "The same task in two runs"),
          this.sides.map((side, index) => [this.whose(index), side.chooser("AB"[index], () => this.load())]),
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
                  el("th", null, "A"),
                  el("th", null, "B"),
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
      const goals = new Map();
      for (const task of this.shared) goals.set(this.sides[0].goal(task), (goals.get(this.sides[0].goal(task)) ?? 0) + 1);
      const words = (task) => {
        const goal = this.sides[0].goal(task);
        return goal ? [goal, goals.get(goal) > 1 ? el("span", { class: "dim small opening" }, short(task)) : null] : short(task);
      };
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
                { type: "button", class: "quiet task-words", title: task, onclick: () => ((this.task = task), this.list()) },
                words(task),
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
                    `${rows.success[rows.id.indexOf(each)] ? "✓" : "✗"} attempt ${rows.place[rows.id.indexOf(each)]}`,
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

  // The runs that an address names: a list, or (as addresses used to be) two letters.
  T.compared = (words) => {
    try {
      const found = JSON.parse(words.runs ?? "null");
      if (Array.isArray(found)) return found.map(String);
    } catch {
      // an invalid address selects nothing
    }
    return [words.a, words.b].filter((run) => run !== undefined);
  };

  // A setting: runs that differ only by their seed, and the style of their curve.
  class Setting {
    constructor({ label, runs, values }, number, cards) {
      Object.assign(this, { label, values, members: runs });
      this.curves = runs.map(({ run }) => new T.Curves(run));
      this.counted = this.curves.filter((_, index) => !runs[index].twice);
      this.steps = runs.some(({ run }) => cards.get(run)?.steps);
      this.look = `${COLOURS[number % COLOURS.length]} dash${number % 4}`;
      this.shape = number % 4;
      this.dots = true;
    }
    get seeds() {
      return this.members.filter(({ twice }) => !twice).map(({ seed }) => seed);
    }
    series(metric, more) {
      const look = { look: this.look, shape: this.shape, dots: more.dots };
      const own = { ...T.bandOf(this.counted, metric, more), ...look, name: this.label, hint: `${this.label}: ${metric}` };
      if (!wishes.single || this.counted.length < 2) return [own];
      const single = this.counted.map((curves) => ({ ...curves.points(metric, more.positive), look: `${this.look} thin`, unnamed: true }));
      return [...single, own];
    }
    // The mean of the seeds' first measured success, or of the last one after an update.
    success(at) {
      const measured = ({ x, y }) => (at < 0 && !(x.at(-1) > 0) ? undefined : y.at(at));
      const values = this.counted.map((curves) => measured(curves.points("eval/success"))).filter((value) => value !== undefined);
      return values.length ? { ...T.meanOf(values), n: values.length } : null;
    }
  }

  const successWords = (found) => {
    if (!found) return "–";
    const inside = (value) => T.percent(Math.min(1, Math.max(0, value)));
    return found.low === null ? T.percent(found.mean) : `${T.percent(found.mean)} (${inside(found.low)} to ${inside(found.high)})`;
  };

  const settingsTable = (settings, drop) =>
    el(
      "div",
      { class: "card scroll" },
      el(
        "table",
        { class: "runs settings" },
        el(
          "thead",
          null,
          el(
            "tr",
            null,
            ["curve", "setting", "runs, by seed", "success at first", "success at last (95 % over seeds)"].map((title) => el("th", null, title)),
          ),
        ),
        el(
          "tbody",
          null,
          settings.map((each) =>
            el(
              "tr",
              null,
              el("td", null, T.swatch(each)),
              el("td", { class: "name" }, each.label),
              el(
                "td",
                null,
                each.members.map(({ run, seed, twice }) =>
                  el(
                    "span",
                    { class: "member-chip" },
                    el("a", { href: T.link("run", { run }), title: run }, `seed ${seed}`),
                    twice ? el("span", { class: "bad-words" }, " twice") : null,
                    el("button", { type: "button", class: "quiet", "aria-label": `Leave out ${run}`, onclick: () => drop(run) }, "×"),
                  ),
                ),
              ),
              el("td", null, successWords(each.success(0))),
              el("td", null, successWords(each.success(-1))),
            ),
          ),
        ),
      ),
    );

  const recipeTable = (keys, settings) => [
    el("h2", null, "What differs in their recipes"),
    keys.length
      ? el(
          "div",
          { class: "scroll" },
          el(
            "table",
            { class: "recipe" },
            el("thead", null, el("tr", null, el("th", null, "key"), settings.map((each) => el("th", null, T.swatch(each), " ", each.label)))),
            el(
              "tbody",
              null,
              keys.map((key, row) =>
                el("tr", null, el("td", null, key), settings.map((each) => el("td", { class: "mono" }, each.values[row]))),
              ),
            ),
          ),
        )
      : el("p", { class: "dim" }, "Nothing but the seed."),
  ];

  // All runs with a checkbox each; the ticked ones are compared.
  const chooser = (cards, runs, go) => {
    const ticked = new Set(runs);
    const body = el("tbody", null);
    const filter = el("input", { type: "search", placeholder: "filter runs  ( / )", "aria-label": "Filter runs", oninput: () => draw() });
    const fits = (card) => [card.run, card.algorithm, card.environment, card.state].join(" ").toLowerCase().includes(filter.value.toLowerCase());
    const draw = () =>
      T.show(
        body,
        cards.filter(fits).map((card) =>
          el(
            "tr",
            null,
            el(
              "td",
              null,
              el(
                "label",
                null,
                el("input", {
                  type: "checkbox",
                  checked: ticked.has(card.run),
                  onchange: (event) => (event.target.checked ? ticked.add(card.run) : ticked.delete(card.run)),
                }),
                ` ${card.run}`,
              ),
            ),
            el("td", null, card.algorithm),
            el("td", null, card.environment),
            el("td", { class: "n" }, card.seed === undefined ? "" : `seed ${card.seed}`),
            el("td", null, T.chip(card.state)),
          ),
        ),
      );
    const all = (on) => () => {
      for (const card of cards.filter(fits)) if (on) ticked.add(card.run); else ticked.delete(card.run);
      draw();
    };
    draw();
    return el(
      "details",
      { class: "card choose-runs", open: runs.length < 2 },
      el("summary", null, `Choose runs (${runs.length} of ${cards.length} are shown)`),
      el(
        "div",
        { class: "bar tight wrap" },
        filter,
        el("button", { type: "button", onclick: all(true) }, "Tick all"),
        el("button", { type: "button", onclick: all(false) }, "Untick all"),
        el("button", { type: "button", class: "main", onclick: () => go([...ticked]) }, "Compare these"),
      ),
      el("div", { class: "scroll choose-list" }, el("table", { class: "runs" }, body)),
    );
  };

  const notes = (settings) => {
    const words = [];
    for (const each of settings) {
      const behind = each.counted.map((curves) => curves.points("collect/success").x.at(-1) ?? 0);
      if (new Set(behind).size > 1)
        words.push(`${each.label}: its runs have come to different iterations (${behind.join(", ")}); its mean ends where the first of them ends.`);
      if (each.members.some(({ twice }) => twice))
        words.push(`${each.label}: runs of the same recipe and the same seed are one result; the mean counts only the first of them.`);
    }
    return words.map((text) => el("p", { class: "dim small" }, text));
  };

  T.views.set("compare", async (root, words) => {
    const cards = (await T.ask("runs")).runs;
    const known = new Map(cards.map((card) => [card.run, card]));
    const go = (runs) => T.go("compare", { runs: JSON.stringify(runs) });
    const asked = T.compared(words).filter((run, index, list) => known.has(run) && list.indexOf(run) === index);
    const spare = cards.find(({ run, environment }) => run !== asked[0] && environment === known.get(asked[0])?.environment)?.run;
    const runs = asked.length > 1 || words.runs ? asked : [...asked, spare ?? cards.find(({ run }) => run !== asked[0])?.run].filter(Boolean);
    const title = el("div", { class: "bar wrap" }, el("h1", null, "Runs compared"));
    if (!runs.length) return (T.show(root, title, chooser(cards, runs, go)), {});

    const found = await T.settings(runs);
    const settings = found.settings.map((each, number) => new Setting(each, number, known));
    const curves = settings.flatMap((each) => each.curves);
    await Promise.all(curves.map((each) => each.look()));
    const steps = settings.some((each) => each.steps);
    const cursor = new T.Cursor();
    const charts = CHARTS.filter(([, , , more]) => !more.steps || steps).map(([name, hint, metric, more]) => [
      new T.LineChart({ title: name, hint, cursor, ...more }),
      metric,
      more,
    ]);
    const drawn = (metric, more) => settings.filter((each) => !more.steps || each.steps).flatMap((each) => each.series(metric, more));
    const other = T.explorer(curves, steps, (name) => drawn(name, {}), { cursor });
    const top = el("div", null);
    const update = () => {
      for (const [chart, metric, more] of charts) chart.update(drawn(metric, more));
      other.update();
      T.show(top, settingsTable(settings, (run) => go(runs.filter((each) => each !== run))), notes(settings));
    };
    update();
    const single = el("input", { type: "checkbox", checked: wishes.single, onchange: (event) => ((wishes.single = event.target.checked), update()) });
    const abouts = await Promise.all([runs[0], runs[1] ?? runs[0]].map(async (run) => new Side(run, await T.ask("run", { run }))));
    const tasks = new Tasks(runs, abouts);
    T.show(
      root,
      title,
      chooser(cards, runs, go),
      top,
      el(
        "div",
        { class: "bar wrap" },
        el(
          "p",
          { class: "dim small" },
          "Line: mean over the seeds of a setting. Band: 95 % interval over seeds. Settings differ by colour, dashes and the shape of their points.",
        ),
        el("label", { class: "choice" }, single, "every run as a thin line"),
      ),
      el(
        "div",
        { class: "charts" },
        charts.map(([chart]) => chart.node),
        other.node,
      ),
      el("section", { class: "card" }, recipeTable(found.keys, settings)),
      tasks.node,
    );
    await tasks.load();
    return {
      every: 3000,
      live: () => curves.some((each) => each.state === "running"),
      key: (event) => {
        const by = new Map([["j", 1], ["ArrowDown", 1], ["k", -1], ["ArrowUp", -1]]).get(event.key);
        if (!by) return false;
        tasks.next(by);
        return true;
      },
      poll: async () => {
        const news = await Promise.all(curves.map((each) => each.look()));
        if (news.some(Boolean)) update();
      },
    };
  });
})();
