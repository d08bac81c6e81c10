"use strict";
// Overview of one run: its learning curves, its credit, its times, its recipe.
(() => {
  const T = window.Turnwise;
  const { el } = T;
  const SIZES = ["1", "2-3", "4-7", "8-15", "16-31", "32-63", "64+"];
  const PHASES = ["sft", "collect", "credit", "update", "eval"];
  const whole = (value, more = 0) => T.percent(value, more);

  // title, what it means, [[metric, name, look, more]], settings
  T.CHARTS = [
    [
      "Success",
      "Share of tasks solved. Evaluation: the fixed held-out panel, with its 95 % interval; training: the sampled attempts.",
      [
        ["eval/success", "evaluation", "c1", { low: "eval/low", high: "eval/high", dots: true }],
        ["collect/success", "training", "c2"],
      ],
      { share: true, format: whole, y: "share of tasks solved (%)" },
    ],
    [
      "Share of turns with step credit",
      "Turns that got step credit; states that no other turn visited give none; groups that all ended the same give no episode credit.",
      [
        ["credit/step_credit_share", "with step credit", "c1"],
        ["credit/singleton_share", "state seen once", "c5"],
        ["credit/constant_group_share", "groups that all ended the same", "c6"],
      ],
      { share: true, format: whole, y: "share of turns or groups (%)", steps: true },
    ],
    [
      "Groups that teach nothing",
      "Groups whose attempts all ended the same: none was better or worse than the others, so none gets credit.",
      [["credit/constant_group_share", "groups that all ended the same", "c6"]],
      { share: true, format: whole, y: "share of groups (%)", steps: false },
    ],
    [
      "Reward",
      "Mean reward of an attempt.",
      [
        ["eval/reward", "evaluation", "c1", { dots: true }],
        ["collect/reward", "training", "c2"],
      ],
      { y: "reward per attempt" },
    ],
    [
      "Length",
      "Mean number of turns of an attempt.",
      [
        ["eval/turns", "evaluation", "c1", { dots: true }],
        ["collect/length", "training", "c2"],
      ],
      { zero: true, y: "turns per attempt" },
    ],
    [
      "Invalid turns",
      "Share of turns whose response held no action that could be read.",
      [
        ["eval/invalid", "evaluation", "c1", { dots: true }],
        ["collect/invalid", "training", "c2"],
      ],
      { format: (v, more = 0) => T.percent(v, 1 + more), zero: true, y: "share of turns (%)" },
    ],
    ["Entropy", "Mean entropy of the tokens' distribution, in nats.", [["learner/entropy", "entropy", "c3"]], { zero: true, y: "nats per token" }],
    [
      "KL",
      "How far the policy moved: within the update (old), and from the frozen reference.",
      [
        ["learner/kl_old_k3", "to the old policy", "c1"],
        ["learner/kl_ref_k3", "to the reference", "c4"],
      ],
      { zero: true, y: "nats per token" },
    ],
    [
      "Clipped tokens",
      "Share of tokens whose ratio was cut off by the objective.",
      [
        ["learner/clip_low", "below", "c5"],
        ["learner/clip_high", "above", "c1"],
      ],
      { format: (v, more = 0) => T.percent(v, 1 + more), zero: true, y: "share of tokens (%)" },
    ],
    [
      "Engine and learner",
      "Mean difference of log-probabilities between the engine that sampled a token and the learner that trains on it; should be near 0.",
      [
        ["learner/engine_gap", "mean", "c1"],
        ["learner/engine_gap_max", "largest", "c5"],
      ],
      { zero: true, y: "difference of log-probabilities (nats)" },
    ],
    ["Gradient norm", "Before clipping.", [["learner/grad_norm", "mean", "c3"]], { zero: true, y: "norm of the gradient" }],
    [
      "Tokens per second",
      "Sampled tokens over the time of collecting.",
      [["time/tokens_per_second", "tokens/s", "c3", { positive: true }]],
      { zero: true, y: "tokens per second" },
    ],
  ];

  // Curves of a chart. They also differ by dashes: the first is solid, the second dashed, the third dotted.
  T.series = (curves, wanted) =>
    wanted.map(([metric, name, own, more = {}], number) => {
      const { x, y, at } = curves.points(metric, more.positive);
      const edge = (key) => {
        const column = more[key] ? curves.columns.get(more[key]) : undefined;
        return column ? at.map((index) => column[index] ?? null) : undefined;
      };
      return { name, x, y, low: edge("low"), high: edge("high"), look: `${own} dash${number}`, dots: more.dots, hint: metric };
    });

  const stacked = (curves, names, prefix, from = 0) => {
    const iterations = curves.columns.get("iteration") ?? [];
    const column = (name) => curves.columns.get(prefix + name) ?? [];
    const rows = iterations
      .map((_, index) => index)
      .filter((index) => iterations[index] >= from && names.some((name) => column(name)[index] != null));
    const layers = names.map((name, number) => ({
      name,
      look: `h${number}`,
      y: rows.map((index) => column(name)[index] ?? 0),
    }));
    return [rows.map((index) => iterations[index]), layers];
  };

  const fact = (title, value, note) =>
    el(
      "div",
      { class: "fact" },
      el("span", { class: "dim" }, title),
      el("b", null, value),
      note ? el("span", { class: "dim" }, note) : null,
    );

  const facts = (card) => {
    const older = card.measured && card.measured !== card.iterations; // a run that goes on is further than its last evaluation
    const range = ([low, high] = []) => (low === null || low === undefined ? null : `95 %: ${T.percent(low)} to ${T.percent(high)}`);
    return el(
      "div",
      { class: "facts card" },
      fact("success before", T.percent(card.before, 1), range(card.before_interval)),
      fact(older ? `success after iteration ${card.measured}` : "success after", T.percent(card.after, 1), range(card.after_interval)),
      fact("iterations", card.planned ? `${card.iterations} of ${card.planned}` : card.iterations, card.state),
      fact("algorithm", card.algorithm, `seed ${card.seed}`),
      fact("environment", card.environment, card.tasks ? `${card.tasks} held-out tasks` : null),
      fact("training time", T.duration(card.seconds), card.turns ? `${card.turns.toLocaleString("en")} turns` : null),
    );
  };

  T.recipe = (found) => {
    const rows = found.differs.map(([key, value, usual]) =>
      el("tr", null, el("td", null, key), el("td", { class: "mono" }, value), el("td", { class: "mono dim" }, usual ?? "")),
    );
    return [
      found.problem ? el("p", { class: "warning" }, found.problem) : null,
      el(
        "table",
        { class: "recipe" },
        el("thead", null, el("tr", null, el("th", null, "key"), el("th", null, "this run"), el("th", null, "default"))),
        el("tbody", null, rows),
      ),
      el("details", null, el("summary", null, "The whole recipe"), el("pre", null, found.text)),
    ];
  };

  const warnings = (list) =>
    list.length
      ? el(
          "section",
          { class: "card warnings", "aria-label": "Warnings" },
          el("h2", null, "Warnings"),
          el(
            "ul",
            null,
            list
              .slice(-12)
              .reverse()
              .map((each) => el("li", null, el("b", null, `iteration ${each.iteration}`), ` ${each.name}: ${each.text}`)),
          ),
        )
      : null;

  // Any metric that no chart shows yet.
  T.explorer = (all, steps, draw, settings) => {
    const names = T.metricNames(all, steps);
    const chart = new T.LineChart({ title: "Any metric", ...settings });
    const choose = el(
      "select",
      { "aria-label": "Metric to draw", onchange: () => update() },
      names.map((name) => el("option", { value: name, selected: name === "learner/loss" }, name)),
    );
    const update = () => {
      chart.names.y = choose.value;
      chart.update(draw(choose.value));
    };
    chart.head.append(choose);
    update();
    return { node: chart.node, update };
  };
  // The metrics of some runs. Step credit is left out if the algorithm gives none.
  T.metricNames = (all, steps) =>
    [...new Set(all.flatMap((curves) => [...curves.columns.keys()]))]
      .filter((name) => name !== "iteration" && (steps || !/^credit\/(step_|anchor_|singleton_|one_trajectory)/.test(name)))
      .sort();

  // All charts of a run, in the order in which they are shown, and how to bring them up to date.
  const board = (curves, steps, onpick) => {
    const cursor = new T.Cursor();
    const shared = { cursor, onpick };
    const charts = T.CHARTS.filter(([, , , more]) => more.steps === undefined || more.steps === steps).map(
      ([title, hint, wanted, more]) => [new T.LineChart({ title, hint, ...shared, ...more }), wanted],
    );
    const anchors = new T.StackChart({
      title: "Turns by the size of their anchor group",
      hint: "How many turns of the group started from the same state. Turns alone in their state (size 1) get no step credit.",
      share: true,
      format: whole,
      y: "share of turns (%)",
      ...shared,
    });
    const phases = new T.StackChart({
      title: "Seconds by phase",
      y: "seconds",
      hint: "Where an iteration's time goes; the warm start before the first one is left out.",
      ...shared,
    });
    const draw = (name) => [{ ...curves.points(name), name, look: "c4" }];
    const other = T.explorer([curves], steps, draw, shared);
    const [success, ...rest] = charts.map(([chart]) => chart.node);
    return {
      nodes: [success, steps ? anchors.node : null, ...rest, phases.node, other.node],
      update: () => {
        for (const [chart, wanted] of charts) chart.update(T.series(curves, wanted));
        if (steps) anchors.update(...stacked(curves, SIZES, "credit/anchor_size_histogram/"));
        phases.update(...stacked(curves, PHASES, "time/", curves.lines > 1 ? 1 : 0)); // the warm start would dwarf all else
        other.update();
      },
    };
  };

  const recipeCard = (run) => {
    const title = el("h2", null, "Recipe of this run");
    const card = el("section", { class: "card recipe-card" }, title, el("p", { class: "dim" }, "…"));
    T.ask("config", { run }).then(
      (found) => T.show(card, title, el("p", { class: "dim" }, "What differs from the defaults:"), T.recipe(found)),
      (error) => T.notice(error.message),
    );
    return card;
  };

  const titleBar = (run, state) =>
    el(
      "div",
      { class: "bar" },
      el("h1", null, run),
      T.chip(state),
      el("span", { class: "grow" }),
      el("a", { class: "button main", href: T.link("attempts", { run }) }, "See the attempts →"),
    );

  T.views.set("run", async (root, { run }) => {
    const curves = new T.Curves(run);
    const about = await T.ask("run", { run });
    if (about.card.diagnosed) return T.findings(root, run);
    await curves.look();
    const { nodes, update } = board(curves, Boolean(about.card.steps), (x) => {
      const kept = about.rollouts.includes(x) ? "rollouts" : about.evals.includes(x) ? "evals" : null;
      if (kept) T.go("attempts", { run, part: kept, iteration: x });
      else T.say(`No attempts of iteration ${x} are kept`);
    });
    const top = el("div", null);
    const draw = () => {
      const lost = curves.damaged ? `${curves.damaged} lines of metrics.jsonl could not be read and are left out.` : null;
      T.show(
        top,
        titleBar(run, about.card.state),
        facts(about.card),
        warnings(about.warnings),
        lost && el("p", { class: "warning" }, lost),
      );
      update();
    };
    draw();
    const hint =
      "A click on a curve opens the attempts of that iteration, if they are kept. A shaded band is a 95 % interval over tasks; " +
      "points mark evaluations; “?” says what a chart shows.";
    T.show(root, top, el("p", { class: "dim small" }, hint), el("div", { class: "charts" }, nodes), recipeCard(run));
    return {
      every: 2000,
      live: () => curves.state === "running",
      poll: async () => {
        const before = curves.state;
        if (!(await curves.look()) && curves.state === before) return;
        Object.assign(about, await T.ask("run", { run }));
        draw();
        T.say(`${run}: iteration ${about.card.iterations}`);
      },
    };
  });
})();
