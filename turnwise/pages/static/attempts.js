"use strict";
// The attempts of an iteration: filter and search them, open one, walk through it.
(() => {
  const T = window.Turnwise;
  const { el } = T;
  const PARTS = ["rollouts", "evals"];
  const STEP = 60; // groups that the list draws at once
  const wishes = { outcome: "", stop: "", type: "", text: "", level: "credit" }; // what was filtered last stays when another iteration is opened

  const different = (list) => [...new Set(list.filter((value) => value !== null && value !== undefined))].sort();

  class Page {
    constructor(root, words, about) {
      Object.assign(this, { root, about, run: words.run, limit: STEP, hits: null });
      this.part = PARTS.includes(words.part) ? words.part : about.rollouts.length ? "rollouts" : "evals";
      const kept = about[this.part] ?? [];
      this.iteration = words.iteration === undefined ? kept[kept.length - 1] : Number(words.iteration);
      this.id = words.id ?? null;
      this.t = Number.parseInt(words.turn ?? 0, 10) || 0;
    }
    get place() {
      return { run: this.run, part: this.part, iteration: this.iteration };
    }
    async start() {
      this.list = el("div", { class: "list", role: "list", "aria-label": "Attempts" });
      this.middle = el("section", { class: "middle", "aria-label": "The attempt" });
      this.side = el("aside", { class: "side card", "aria-label": "Why was this turn rewarded" });
      this.top = el("div", { class: "chooser" });
      T.show(
        this.root,
        el(
          "div",
          { class: "attempts" },
          el("section", { class: "left", "aria-label": "Choose an attempt" }, this.top, this.list),
          this.middle,
          this.side,
        ),
      );
      if (this.iteration === undefined)
        return T.show(
          this.middle,
          el(
            "p",
            { class: "empty-words" },
            T.file
              ? "This file holds no attempts of this run."
              : "This run keeps no attempts yet (run.keep_rollouts says how many iterations stay).",
          ),
        );
      await this.load();
    }
    async load() {
      try {
        this.batch = await T.askOnce("batch", this.place);
      } catch (error) {
        this.chooser();
        return T.show(this.middle, el("p", { class: "warning" }, error.message));
      }
      this.hits = null;
      this.limit = STEP;
      this.chooser();
      this.filter();
      const rows = this.batch.rows;
      if (this.id === null || !rows.id.includes(this.id)) {
        this.id = this.favourite();
        this.t = 0;
      }
      this.drawList();
      await this.open(this.id, this.t, false);
    }
    chooser() {
      const rows = this.batch?.rows ?? { stop: [], type: [] };
      const kept = this.about[this.part] ?? [];
      const parts = [
        ["rollouts", "training"],
        ["evals", "evaluation"],
      ].filter(([part]) => this.about[part].length);
      const set = (key) => (value) => ((wishes[key] = value), this.refilter());
      const at = kept.indexOf(this.iteration);
      const step = (by) =>
        el(
          "button",
          {
            type: "button",
            disabled: kept[at + by] === undefined,
            "aria-label": by < 0 ? "Iteration before" : "Next iteration",
            onclick: () => this.turnTo(this.part, kept[at + by]),
          },
          by < 0 ? "‹" : "›",
        );
      this.field = el("input", {
        type: "search",
        value: wishes.text,
        placeholder: "goal, task or text  ( / )",
        "aria-label": "Filter by goal or task; Enter searches the texts",
        "data-search": true,
        oninput: (event) => ((wishes.text = event.target.value), (this.hits = null), this.refilter()),
        onkeydown: (event) => event.key === "Enter" && this.search(),
      });
      const stops = different(rows.stop),
        types = different(rows.type);
      T.show(
        this.top,
        this.about.card.diagnosed
          ? null
          : el(
              "div",
              { class: "bar tight" },
              T.choice(
                "Training or evaluation",
                parts,
                this.part,
                (part) => this.turnTo(part, this.about[part][this.about[part].length - 1]),
                true,
              ),
              T.choice(
                "iteration",
                [...kept].reverse().map((n) => [n, n]),
                this.iteration,
                (n) => this.turnTo(this.part, Number(n)),
              ),
              step(-1),
              step(1),
            ),
        el(
          "div",
          { class: "bar tight" },
          this.field,
          el("button", { type: "button", onclick: () => this.search(), title: "Search all texts of this iteration" }, "Search texts"),
        ),
        el(
          "div",
          { class: "bar tight filters" },
          T.choice(
            "Outcome",
            [
              ["", "any outcome"],
              ["won", "solved"],
              ["lost", "not solved"],
              ["mixed", "mixed groups"],
            ],
            wishes.outcome,
            set("outcome"),
            true,
          ),
          stops.length > 1
            ? T.choice("Ended by", [["", "any end"], ...stops.map((stop) => [stop, stop])], wishes.stop, set("stop"), true)
            : null,
          types.length > 1
            ? T.choice("Task type", [["", "any type"], ...types.map((type) => [type, type])], wishes.type, set("type"), true)
            : null,
        ),
        (this.counted = el("p", { class: "dim small" })),
      );
    }
    // The first attempt to show: the first of a group whose attempts ended differently, which has most to see.
    favourite() {
      const { id, group, success } = this.batch.rows;
      const here = this.order.filter((number) => T.inFile("attempt", { ...this.place, id: id[number] }));
      const lost = new Set(group.filter((_, number) => !success[number]));
      const mixed = here.find((number) => success[number] && lost.has(group[number]));
      const found = mixed ?? here[0] ?? this.order[0];
      return found === undefined ? null : id[found];
    }
    turnTo(part, iteration) {
      Object.assign(this, { part, iteration, id: null, t: 0 });
      this.write(false);
      return this.load();
    }
    write(quiet) {
      T.go("attempts", { run: this.run, part: this.part, iteration: this.iteration, id: this.id, turn: this.t || null }, true);
    }
    filter() {
      const { id, task, goal, type, success, stop, group } = this.batch.rows;
      const wanted = wishes.text.toLowerCase();
      const solved = new Map();
      group.forEach((name, number) => solved.set(name, (solved.get(name) ?? new Set()).add(success[number])));
      const types = new Set(type),
        stops = new Set(stop);
      this.order = id
        .map((_, number) => number)
        .filter((number) => {
          if (this.hits) return this.hits.has(id[number]);
          if (wishes.outcome === "won" && !success[number]) return false;
          if (wishes.outcome === "lost" && success[number]) return false;
          if (wishes.outcome === "mixed" && solved.get(group[number]).size < 2) return false;
          if (wishes.stop && stops.has(wishes.stop) && stop[number] !== wishes.stop) return false;
          if (wishes.type && types.has(wishes.type) && type[number] !== wishes.type) return false;
          return !wanted || `${goal[number] ?? ""} ${task[number]}`.toLowerCase().includes(wanted) || id[number] === wanted;
        });
      const won = this.order.filter((number) => success[number]).length;
      this.counted.textContent = `${this.order.length} of ${id.length} attempts, ${won} solved`;
    }
    refilter() {
      this.filter();
      this.drawList();
    }
    async search() {
      const text = wishes.text.trim();
      if (!text) return this.field.focus();
      this.counted.textContent = "searching …";
      const found = await T.search({ ...this.place, text });
      this.hits = new Map();
      for (const hit of found.hits) this.hits.set(hit.id, [...(this.hits.get(hit.id) ?? []), hit]);
      this.refilter();
      this.counted.textContent = `“${text}” in ${found.hits.length}${found.more ? " or more" : ""} turns of ${this.hits.size} attempts`;
      T.say(this.counted.textContent);
    }
    drawList() {
      const rows = this.batch.rows;
      const groups = new Map(),
        sizes = new Map();
      const add = (map, key, value) => (map.has(key) ? map.get(key).push(value) : map.set(key, [value]));
      for (const number of this.order) add(groups, rows.group[number], number);
      rows.group.forEach((group, number) => add(sizes, group, rows.success[number]));
      this.lines = new Map();
      const shown = [...groups].slice(0, this.limit);
      this.short = T.shortener(rows.task);
      const goals = new Map();
      rows.goal.forEach((goal, number) => goals.set(goal, (goals.get(goal) ?? new Set()).add(rows.task[number])));
      this.shared = (number) => (goals.get(rows.goal[number])?.size ?? 0) > 1; // a goal that several tasks have does not tell them apart
      const alone = this.part === "evals" && groups.size === this.order.length;
      T.show(
        this.list,
        shown.map(([group, numbers]) => {
          const all = sizes.get(group);
          const won = all.filter(Boolean).length;
          return el(
            "div",
            { class: "group", role: "listitem" },
            alone
              ? null
              : el(
                  "div",
                  { class: "group-head" },
                  this.taskName(numbers[0]),
                  el("span", { class: "dim", title: "attempts that solved the task" }, `${won} of ${all.length} solved`),
                ),
            numbers.map((number) => this.line(number, alone)),
          );
        }),
        groups.size > this.limit
          ? el(
              "button",
              { type: "button", onclick: () => ((this.limit += STEP), this.drawList()) },
              `show more (${groups.size - this.limit} groups)`,
            )
          : null,
        this.order.length ? null : el("p", { class: "dim" }, "No attempt fits."),
      );
    }
    // A task in the list: its goal and, if that is not unique, its id or its beginning.
    taskName(number) {
      const { task, goal, opening } = this.batch.rows;
      const more = goal[number] ? (this.shared(number) ? this.short(task[number]) : null) : opening[number];
      return el(
        "span",
        { class: "task-words", title: task[number] },
        el("span", { class: "goal" }, goal[number] ?? this.short(task[number])),
        more ? el("span", { class: "dim small opening" }, more) : null,
      );
    }
    // Which line of the list is open.
    markLine() {
      for (const [id, node] of this.lines) {
        node.classList.toggle("current", id === this.id);
        if (id === this.id) node.setAttribute("aria-current", "true");
        else node.removeAttribute("aria-current");
      }
      this.lines.get(this.id)?.scrollIntoView({ block: "nearest" });
    }
    line(number, alone) {
      const rows = this.batch.rows;
      const id = rows.id[number];
      const here = T.inFile("attempt", { ...this.place, id });
      const pick = el(
        "button",
        {
          type: "button",
          class: `pick ${id === this.id ? "current" : ""}`,
          "aria-current": id === this.id ? "true" : null,
          disabled: !here,
          title: here ? `id ${id}` : "not in this file",
          "aria-label": `${rows.success[number] ? "solved" : "not solved"}: ${T.attemptName({ place: rows.place[number], of: rows.of[number] })}, ${T.turns(rows.turns[number])}, reward ${T.number(rows.reward[number])}${rows.invalid[number] ? `, ${rows.invalid[number]} turns could not be read` : ""}`,
          onclick: () => this.open(id, 0),
        },
        el("span", { class: rows.success[number] ? "won" : "lost" }, rows.success[number] ? "✓" : "✗"),
        el("span", { class: alone ? "id words" : "id" }, alone ? this.taskName(number) : `attempt ${rows.place[number]}`),
        el("span", { class: "dim" }, T.turns(rows.turns[number])),
        el("span", { class: "dim" }, `reward ${T.number(rows.reward[number])}`),
        rows.invalid[number] ? el("span", { class: "bad-words", title: "turns that could not be read" }, `${rows.invalid[number]}!`) : null,
      );
      this.lines.set(id, pick);
      return el(
        "div",
        { class: "member" },
        pick,
        (this.hits?.get(id) ?? [])
          .slice(0, 3)
          .map((hit) =>
            el("button", { type: "button", class: "hit", onclick: () => this.open(id, hit.t) }, el("b", null, `turn ${hit.t + 1} `), hit.text),
          ),
      );
    }
    async open(id, t = 0, moved = true) {
      if (id === null)
        return (T.show(this.middle, el("p", { class: "empty-words" }, "No attempt matches.")), T.show(this.side));
      const turn = (this.opening = (this.opening ?? 0) + 1);
      const number = this.batch.rows.id.indexOf(id);
      const asked = [T.askOnce("attempt", { ...this.place, id })];
      if (this.part === "rollouts")
        asked.push(T.askOnce("group", { ...this.place, group: this.batch.rows.group[number] }).catch(() => null));
      let found;
      try {
        found = await Promise.all(asked);
      } catch (error) {
        return (T.show(this.middle, el("p", { class: "warning" }, error.message)), T.show(this.side));
      }
      if (turn !== this.opening) return; // another one was opened in the meantime
      [this.attempt, this.group] = found;
      this.id = id;
      this.draw();
      this.choose(Math.min(t, this.attempt.turns.length - 1), moved);
      this.markLine();
    }
    draw() {
      const attempt = this.attempt;
      const pick = (id, t) => (id === this.id ? this.choose(t) : this.open(id, t));
      this.pick = pick;
      const box = this.group ? this.mapBox(pick) : ((this.map = null), null);
      T.show(
        this.middle,
        el(
          "div",
          { class: "card head" },
          T.attemptHead(attempt),
          attempt.problem ? el("p", { class: "warning" }, attempt.problem) : null,
          T.callTree(attempt, pick),
          box,
        ),
        el(
          "ol",
          { class: "turns" },
          attempt.turns.map((turn, t) => T.turnCard(attempt, turn, t, this.place, (at) => this.choose(at, true, false))),
        ),
      );
      this.middle.scrollTop = 0;
    }
    // The map of the group, its colours, and the meaning of its marks.
    mapBox(pick) {
      const levels = T.levels(this.group);
      const level = levels.some(([name]) => name === wishes.level) ? wishes.level : "credit";
      this.map = T.groupMap(this.group, this.id, pick, level);
      const legend = el("div", null);
      const paint = (name) => {
        this.map.paint(name);
        T.show(legend, T.mapLegend(this.group.scales[name], new Map(levels).get(name)));
      };
      paint(level);
      const choice = T.oneOf("Colour by", levels, level, (name) => {
        wishes.level = name;
        paint(name);
        T.say(`coloured by ${new Map(levels).get(name)}`);
      });
      return el(
        "details",
        { open: true, class: "map-box" },
        el("summary", null, "The group: one line per attempt, one cell per turn"),
        Object.keys(this.group.states).length
          ? el("a", { class: "small", href: T.link("tree", { ...this.place, group: this.attempt.group, id: this.id }) }, "As a tree →")
          : null,
        levels.length > 1 ? choice : null,
        this.map.node,
        legend,
      );
    }
    choose(t, write = true, scroll = true) {
      this.t = Math.max(0, t);
      for (const node of this.middle.querySelectorAll(".turn")) node.classList.toggle("current", Number(node.dataset.turn) === this.t);
      const card = this.middle.querySelector(".turn.current");
      if (scroll && this.t > 0) card?.scrollIntoView({ block: "nearest" });
      this.map?.mark(this.id, this.t);
      T.why(this.side, this.attempt, this.t, this.group, this.pick);
      this.write();
    }
    step(by) {
      if (this.attempt) this.choose(Math.min(this.attempt.turns.length - 1, Math.max(0, this.t + by)));
      T.say(`turn ${this.t + 1}: ${this.attempt?.turns[this.t]?.why?.[0] ?? ""}`);
    }
    next(by) {
      const at = this.order.findIndex((number) => this.batch.rows.id[number] === this.id);
      for (let to = at + by; this.order[to] !== undefined; to += by) {
        const id = this.batch.rows.id[this.order[to]];
        if (T.inFile("attempt", { ...this.place, id })) return this.open(id, 0);
      }
      return null;
    }
    key(event) {
      const acts = {
        j: () => this.step(1),
        ArrowDown: () => this.step(1),
        k: () => this.step(-1),
        ArrowUp: () => this.step(-1),
        l: () => this.next(1),
        ArrowRight: () => this.next(1),
        h: () => this.next(-1),
        ArrowLeft: () => this.next(-1),
      };
      if (!acts[event.key]) return false;
      acts[event.key]();
      return true;
    }
  }

  T.views.set("attempts", async (root, words) => {
    if (PARTS.includes(words.part) && words.iteration)
      T.askOnce("batch", { run: words.run, part: words.part, iteration: Number(words.iteration) }).catch(() => null); // needed soon
    const about = await T.ask("run", { run: words.run });
    const page = new Page(root, words, about);
    await page.start();
    return {
      every: 4000,
      live: () => about.card.state === "running",
      key: (event) => page.key(event),
      poll: async () => {
        const before = JSON.stringify([about.rollouts, about.evals]);
        Object.assign(about, await T.ask("run", { run: words.run }));
        if (JSON.stringify([about.rollouts, about.evals]) === before) return;
        if (page.iteration === undefined) await page.start.call(Object.assign(page, new Page(root, words, about)));
        else (page.chooser(), page.filter());
      },
    };
  });
})();
