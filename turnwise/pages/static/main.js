"use strict";
// Which page is shown, its updates, the keyboard, light and dark.
(() => {
  const T = window.Turnwise;
  const { el } = T;
  const main = document.getElementById("main");
  const TITLES = { run: "overview", attempts: "attempts", compare: "compare" };
  const KEYS = [
    ["j / k, ↓ / ↑", "next and previous turn (or task, side by side)"],
    ["l / h, → / ←", "next and previous attempt"],
    ["/", "search or filter"],
    ["Enter", "in the search: look through all texts of the iteration"],
    ["o, a, c", "overview, attempts, compare"],
    ["r", "list of runs"],
    ["← / → in a chart", "walk through iterations; Enter opens the attempts"],
    ["d", "dark or light"],
    ["Esc", "leave a field, close this"],
    ["?", "this help"],
  ];
  let view = null,
    timer = 0,
    drawn = 0;

  const crumbs = ({ page, words }) => {
    const run = words.run ?? T.compared(words)[0];
    const path = document.getElementById("path"),
      tabs = document.getElementById("tabs");
    T.show(
      path,
      page
        ? [el("a", { href: "#/" }, "runs"), run && page !== "compare" ? [" / ", el("a", { href: T.link("run", { run }) }, run)] : null]
        : null,
    );
    T.show(
      tabs,
      run
        ? ["run", "attempts", "compare"].map((name) =>
            el("a", { href: tab(name, run), "aria-current": page === name ? "page" : null }, TITLES[name]),
          )
        : null,
    );
    if (run) T.askOnce("run", { run }).then(({ card }) => document.body.classList.toggle("logs", card.diagnosed), () => null);
    document.title = T.visible(`${run ?? "Runs"} · Turnwise`);
  };
  const tab = (name, run) => T.link(name, name === "compare" ? { a: run } : { run });

  const tick = async () => {
    clearTimeout(timer);
    if (!T.isLive || !view?.poll) return;
    const mine = view;
    if (!document.hidden) {
      try {
        await mine.poll();
        T.notice("");
      } catch (error) {
        T.notice(error instanceof TypeError ? "The server does not answer: was `turnwise view` ended?" : error.message);
      }
    }
    if (mine !== view) return;
    document.getElementById("live").hidden = !mine.live?.();
    timer = setTimeout(tick, mine.every);
  };

  const route = async () => {
    if (location.hash === "#main") return main.focus();
    const place = T.place();
    if (T.file && !location.hash) return T.go(...first());
    const draw = ++drawn;
    clearTimeout(timer);
    view = null;
    crumbs(place);
    T.notice("");
    document.getElementById("live").hidden = true;
    const root = el("div", { class: `page ${place.page || "runs"}-page` }, el("p", { class: "dim loading" }, "…"));
    T.show(main, root);
    try {
      const made = T.views.get(place.page);
      if (!made) throw new Error("There is no such page.");
      const found = await made(root, place.words);
      if (draw !== drawn) return;
      view = found ?? {};
      document.body.dataset.ready = String(draw);
      tick();
    } catch (error) {
      if (draw === drawn)
        T.show(root, el("p", { class: "warning" }, error.message), el("p", null, el("a", { href: "#/" }, "To the list of runs")));
    }
  };

  // A file about one run opens on it, one about several on their comparison.
  const first = () => {
    const runs = T.file.answers["runs?"].runs.map((card) => card.run);
    return runs.length > 1 ? ["compare", { runs: JSON.stringify(runs) }] : ["run", { run: runs[0] }];
  };

  const theme = (choice) => {
    if (choice) document.documentElement.dataset.theme = choice;
    try {
      if (choice) localStorage.setItem("theme", choice);
    } catch {
      // a browser may forbid storage to files; the choice then lasts as long as the page
    }
  };
  const isDark = () =>
    (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  try {
    theme(localStorage.getItem("theme"));
  } catch {
    // as above
  }

  const keys = document.getElementById("keys");
  T.show(
    keys,
    el("h2", null, "Keyboard"),
    el(
      "table",
      null,
      KEYS.map(([key, what]) => el("tr", null, el("td", null, el("kbd", null, key)), el("td", null, what))),
    ),
    el("form", { method: "dialog" }, el("button", { class: "main" }, "Close")),
  );
  const help = () => (keys.open ? keys.close() : keys.showModal());
  document.getElementById("help").addEventListener("click", help);
  document.getElementById("theme").addEventListener("click", () => theme(isDark() ? "light" : "dark"));

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const writes = event.target.matches?.("input[type=search], input[type=radio], select, textarea");
    if (event.key === "Escape" && writes) return event.target.blur();
    if (writes || (keys.open && event.key !== "?")) return;
    const { words } = T.place();
    const run = words.run ?? T.compared(words)[0];
    const goTo = (name) => () => run && (location.hash = tab(name, run));
    const acts = {
      "?": help,
      d: () => theme(isDark() ? "light" : "dark"),
      r: () => (location.hash = "#/"),
      o: goTo("run"),
      a: goTo("attempts"),
      c: goTo("compare"),
      "/": () => document.querySelector("[data-search]")?.focus(),
    };
    if (acts[event.key]) acts[event.key]();
    else if (!view?.key?.(event)) return;
    event.preventDefault();
  });

  addEventListener("hashchange", route);
  document.addEventListener("visibilitychange", () => document.hidden || tick());
  if (T.file) document.body.classList.add("in-file");
  route();
})();
