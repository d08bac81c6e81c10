"use strict";
// The base of the pages: making elements, showing any text safely, formatting numbers.
// Anything that a model, an environment or a recipe wrote enters the page as text and never as markup.
(() => {
  const T = (window.Turnwise = { views: new Map() }); // names from data and addresses are keys of maps, never of plain objects
  const SVG = "http://www.w3.org/2000/svg";
  // Control characters, marks that change the reading direction, lone surrogates and non-characters: shown by name, so that nothing hides.
  const ODD =
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufdd0-\ufdef\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

  T.visible = (value) =>
    String(value ?? "")
      .replace(/\r\n/g, "\n")
      .replace(ODD, (odd) => `[U+${odd.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}]`);

  const fill = (node, props, children) => {
    for (const [key, value] of Object.entries(props ?? {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (key === "value") node.value = value;
      else if (key === "checked" || key === "selected") node[key] = value;
      else if (key === "tint") T.tint(node, value);
      else if (key === "tip") T.tip(node, value);
      else node.setAttribute(key, value === true ? "" : T.visible(value));
    }
    for (const child of children.flat(3)) {
      if (child === null || child === undefined || child === false) continue;
      node.append(child instanceof Node ? child : document.createTextNode(T.visible(child)));
    }
    return node;
  };

  T.el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
  T.svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
  T.show = (node, ...children) => (node.replaceChildren(), fill(node, null, children));

  // Credit as colour: blue for good, orange for bad, which everyone can distinguish; the number is always next to it.
  T.tint = (node, [value, scale]) => {
    node.classList.remove("tinted", "good", "bad", "strong");
    if (value === null || value === undefined || !scale) return;
    const strength = Math.min(1, Math.abs(value) / scale);
    node.style.setProperty("--strength", value === 0 ? "0%" : `${Math.round(12 + 78 * strength)}%`);
    node.classList.add("tinted", value < 0 ? "bad" : "good");
    if (strength > 0.55) node.classList.add("strong");
  };

  // The meaning of a mark, for mouse, touch and keyboard: shown when it is pointed at or has the focus.
  const tip = document.getElementById("tip");
  const showTip = (node) => {
    tip.hidden = !node;
    if (!node) return;
    T.show(tip, node.tip);
    const box = node.getBoundingClientRect(),
      own = tip.getBoundingClientRect();
    const below = box.bottom + 6 + own.height < innerHeight;
    tip.style.left = `${Math.max(6, Math.min(box.left, innerWidth - own.width - 6))}px`;
    tip.style.top = `${below ? box.bottom + 6 : Math.max(6, box.top - own.height - 6)}px`;
  };
  T.tip = (node, text) => {
    node.tip = text;
    node.dataset.tip = "";
  };
  for (const kind of ["pointerover", "focusin"])
    document.addEventListener(kind, (event) => showTip(event.target.closest?.("[data-tip]") ?? null));
  document.addEventListener("focusout", () => showTip(null));
  document.addEventListener("keydown", (event) => event.key === "Escape" && showTip(null), true);
  addEventListener("hashchange", () => showTip(null));
  // A question mark that explains what is next to it.
  T.hint = (about, text) => T.el("button", { type: "button", class: "hint", tip: text, "aria-label": `${about}: ${text}` }, "?");

  T.times = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;
  T.turns = (count) => T.times(count, "turn");
  T.percent = (share, digits = 0) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`);
  T.signed = (value) => {
    if (value === null || value === undefined) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    return (value < 0 ? "−" : "+") + (size >= 0.005 ? size.toFixed(2) : size.toPrecision(1));
  };
  T.number = (value, more = 0) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (value < 0) return `−${T.number(size, more)}`;
    if (size >= 10000) return value.toLocaleString("en", { minimumFractionDigits: more, maximumFractionDigits: more });
    if (size >= 100) return value.toFixed(more);
    if (size >= 1) return String(+value.toFixed(2 + more));
    if (size >= 0.001) return String(+value.toPrecision(3 + more));
    return value.toExponential(1 + more);
  };
  T.duration = (seconds) => {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 60) return `${Math.round(seconds)} s`;
    const minutes = Math.floor(seconds / 60);
    return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };

  // A label, visible and for screen readers, or (quiet) for screen readers only.
  T.choice = (label, options, value, onchange, quiet) =>
    T.el(
      "label",
      { class: "choice" },
      quiet ? null : T.el("span", null, label),
      T.el(
        "select",
        { "aria-label": label, onchange: (event) => onchange(event.target.value) },
        options.map(([key, text]) => T.el("option", { value: key, selected: String(key) === String(value) }, text)),
      ),
    );

  // Names with a common beginning are shortened to what follows it.
  T.shortener = (names) => {
    const sorted = [...new Set(names)].sort();
    if (sorted.length < 2) return (name) => name;
    const [first, last] = [sorted[0], sorted[sorted.length - 1]];
    let same = 0;
    while (same < first.length && first[same] === last[same]) same += 1;
    const cut = Math.max(...["-", "_", "/", " ", ":", "."].map((mark) => first.lastIndexOf(mark, same - 1))) + 1;
    return (name) => (cut > 3 ? "…" + name.slice(cut) : name);
  };

  T.say = (text) => (document.getElementById("say").textContent = T.visible(text));
  T.notice = (text) => {
    const node = document.getElementById("notice");
    node.hidden = !text;
    T.show(node, text);
  };

  // An attempt as text: its number among the attempts at its task.
  T.attemptName = ({ place, of }) => (of > 1 ? `attempt ${place} of ${of}` : "the only attempt");
  // A task as text: its goal, or its id if no goal is known.
  T.goal = ({ goal, task }) => goal || task;

  // Where the reader is: #/page/run?word=value
  T.link = (page, words = {}) => {
    const query = new URLSearchParams(Object.entries(words).filter(([, value]) => value !== null && value !== undefined && value !== ""));
    return `#/${page}${query.size ? "?" + query : ""}`;
  };
  T.place = () => {
    const [page, query] = location.hash.replace(/^#\/?/, "").split("?");
    const words = Object.assign(Object.create(null), Object.fromEntries(new URLSearchParams(query ?? "")));
    return { page, words };
  };
  T.go = (page, words, quiet) => {
    const link = T.link(page, words);
    if (quiet) history.replaceState(null, "", link);
    else location.hash = link;
  };
})();
