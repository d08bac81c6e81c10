// Runs in every page before its own scripts. Time is a number that only `pass` advances; random numbers before the seed are fixed; what
// the page shows is listed by `look`, and `at`, `focus`, `choose`, `mark` and `scroll` are what an action needs to know or do.
(() => {
  "use strict";

  // -- time ---------------------------------------------------------------------------------------------------------------------------
  const START = Date.UTC(2024, 5, 3, 9, 0, 0), FRAME = 16, RealDate = Date;
  let now = 0, last = 0, timers = new Map();
  const plan = (run, delay, every) => {
    timers.set(++last, { run, every, due: now + Math.max(every === null ? 0 : 1, Number(delay) || 0) });
    return last;
  };
  const call = (run, rest) => (typeof run === "function" ? () => run(...rest) : () => (0, eval)(String(run)));
  const forget = (id) => { timers.delete(id); };
  window.setTimeout = (run, delay, ...rest) => plan(call(run, rest), delay, null);
  window.setInterval = (run, delay, ...rest) => plan(call(run, rest), delay, Math.max(1, Number(delay) || 0));
  window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = forget;
  window.requestAnimationFrame = (run) => plan(() => run(now), FRAME, null);
  window.requestIdleCallback = (run) => plan(() => run({ didTimeout: false, timeRemaining: () => 10 }), 1, null);
  performance.now = () => now;
  class FixedDate extends RealDate {
    constructor(...given) { if (given.length) super(...given); else super(START + now); }
    static now() { return START + now; }
  }
  window.Date = new Proxy(FixedDate, { apply: () => new FixedDate().toString() });

  const pass = (span, most = 20000) => {
    const end = now + span;
    for (let count = 0; count < most; count++) {
      let first = null, id = 0;
      for (const [key, timer] of timers) if (timer.due <= end && (first === null || timer.due < first.due)) { first = timer; id = key; }
      if (first === null) break;
      now = Math.max(now, first.due);
      if (first.every === null) timers.delete(id); else first.due = now + first.every;
      try { first.run(); } catch (error) { void error; }
    }
    now = end;
  };

  // -- chance, dialogs, listeners --------------------------------------------------------------------------------------------------------
  let state = 1;
  Math.random = () => { state = (state * 48271) % 2147483647; return state / 2147483647; };
  window.alert = window.print = () => undefined;
  window.confirm = () => true;
  window.prompt = () => null;
  window.open = () => null;
  const heard = new WeakSet(), plainAdd = EventTarget.prototype.addEventListener;
  const POINTER = /^(click|dblclick|mousedown|mouseup|mouseenter|mouseover|pointerdown|touchstart)$/;
  EventTarget.prototype.addEventListener = function (kind, ...rest) {
    if (POINTER.test(kind) && this instanceof Element) heard.add(this);
    return plainAdd.call(this, kind, ...rest);
  };
  plainAdd.call(document, "DOMContentLoaded", () => {
    const style = document.createElement("style");
    style.textContent = "*, *::before, *::after { transition: none !important; animation: none !important; caret-color: transparent !important }"
      + " html { scroll-behavior: auto !important } #sync-task-cover, #reward-display, #click-canvas { display: none !important }";
    document.head.appendChild(style);
  });
  plainAdd.call(window, "submit", (event) => event.preventDefault(), true);  // a form never leaves the page
  plainAdd.call(window, "click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    if (link && !(link.getAttribute("href") || "").startsWith("#")) event.preventDefault();
  }, true);

  // What the mouse last told the page it is over. If something else is there by now, the browser would say so at some later frame.
  let over = null;
  for (const kind of ["mousemove", "mouseover", "mousedown", "mouseup"]) plainAdd.call(window, kind, (event) => { over = event.target; }, true);
  const still = (x, y) => {
    const top = document.elementFromPoint(x, y);
    return top === over || !top || over === null && (top === document.body || top === document.documentElement);
  };

  // -- what the page shows ---------------------------------------------------------------------------------------------------------------
  const HIDDEN_IDS = new Set(["reward-display", "sync-task-cover", "click-canvas", "query"]);
  const SHAPES = new Set(["circle", "rect", "polygon", "polyline", "ellipse", "line", "path", "text"]);
  const FIELDS = "input, textarea, select";
  const clean = (text) => text.replace(/\s+/g, " ").trim();
  const clear = (colour) => !colour || colour === "none" || colour === "transparent" || /^rgba\(.*, 0\)$/.test(colour);
  let shown = [], clipboard = "";

  const hex = (colour) => {
    const parts = /^rgba?\((\d+), (\d+), (\d+)/.exec(colour || "");
    return parts ? "#" + parts.slice(1, 4).map((part) => Number(part).toString(16).padStart(2, "0")).join("") : "";
  };
  const classes = (element) => (element.getAttribute("class") || "").trim();
  const labels = (input) => clean([...(input.labels || [])].map((label) => label.textContent).join(" "));

  function box(element) {
    const at = element.getBoundingClientRect();
    return [at.left, at.top, at.width, at.height].map((value) => Math.round(value));
  }

  function visible(element, style) {
    if (style.visibility !== "visible" || Number(style.opacity) === 0) return false;
    const at = element.getBoundingClientRect();
    return element instanceof SVGElement ? Math.max(at.width, at.height) > 2 : at.width > 0 && at.height > 0;
  }

  const picture = (icon) => (/ui-icon-(?!caret|triangle|closethick|grip|blank|arrow)([\w-]+)/.exec(classes(icon)) || ["", ""])[1];

  const MARKED = /(^|\s)(selected|active|ui-selected|ui-state-active)(\s|$)/;

  function states(element) {
    const found = [], is = (name) => element.getAttribute(`aria-${name}`) === "true";
    if (document.activeElement === element) found.push("focused");
    if (element.disabled || classes(element).includes("ui-state-disabled")) found.push("disabled");
    if (element.readOnly && element.tagName !== "INPUT") found.push("read-only");
    const marked = MARKED.test(classes(element));
    const parent = element.parentElement;
    if (is("selected") || marked || parent.getAttribute("aria-selected") === "true" || MARKED.test(classes(parent))) found.push("selected");
    if (is("expanded")) found.push("open");
    const icon = [...element.children].find((child) => child.matches(".ui-icon") && picture(child));
    if (icon) found.push(`icon ${picture(icon)}`);
    return found;
  }

  function field(element) {
    const tag = element.tagName.toLowerCase(), kind = (element.type || "").toLowerCase();
    if (tag === "select") {
      const options = [...element.options].map((option) => clean(option.text));
      return { kind: "select", text: labels(element), value: [...element.selectedOptions].map((option) => clean(option.text)).join(", "),
        options, many: element.multiple };
    }
    if (kind === "checkbox" || kind === "radio") return { kind, text: labels(element) || beside(element), checked: element.checked };
    if (kind === "button" || kind === "submit" || kind === "reset") return { kind: "button", text: clean(element.value) };
    const known = { textarea: "textarea", password: "password", date: "date", time: "time", number: "number", range: "slider" };
    return { kind: known[kind] || "textbox", text: labels(element) || clean(element.placeholder || ""), value: element.value };
  }

  function beside(element) {
    let text = "";
    for (let next = element.nextSibling; next && !(next instanceof Element); next = next.nextSibling) text += next.textContent;
    return clean(text);
  }

  function shape(element, style) {
    const fill = clear(style.fill) ? "" : hex(style.fill), line = clear(style.stroke) ? "" : hex(style.stroke);
    const points = (element.getAttribute("points") || "").trim().split(/\s+/).filter(Boolean).length;
    return { kind: element.tagName.toLowerCase(), text: element.tagName === "text" ? clean(element.textContent) : "",
      colour: fill || line, corners: points, place: true };
  }

  // A name for what has no text: a title, or the class or id that says most.
  function named(element) {
    const known = classes(element).split(/\s+/).filter((name) => name && !/^ui-(button|widget|corner|state|spinner-button|resizable-handle|icon)/.test(name));
    return clean(element.title || element.alt || element.getAttribute("aria-label") || known[0] || element.id || "").replace(/^(ui|ql)-/, "");
  }

  const uses = (element) => heard.has(element) || element.onclick !== null || element.tagName === "BUTTON" || element.tagName === "A";

  function plain(element, style, own) {
    const tag = element.tagName.toLowerCase(), role = element.getAttribute("role") || "";
    const painted = clear(style.backgroundColor) ? "" : hex(style.backgroundColor);
    const pictured = style.backgroundImage !== "none" || style.content.startsWith("url") || tag === "img" || tag === "canvas";
    const acts = uses(element) || element.tabIndex === 0;
    const bare = element.childElementCount === 0 || acts && !clean(element.textContent) && !element.querySelector("span, div, input");
    if (!own && !(bare && (acts || pictured || painted && classes(element) + element.id))) return null;
    const name = { button: "button", a: "link", td: "cell", th: "cell", li: "item", img: "image", canvas: "canvas" }[tag]
      || (/^h[1-6]$/.test(tag) ? "heading" : "text");
    const kind = { tab: "tab", menuitem: "item", slider: "handle" }[role] || (/\balink\b/.test(classes(element)) ? "link"
      : /slider-handle/.test(classes(element)) ? "handle" : !own && name === "text" ? "box" : name);
    return { kind, bare: !own, text: own || (painted && !["button", "link"].includes(kind) ? "" : named(element)), colour: own ? "" : painted };
  }

  const BLOCK = "\u2588";  // a cursor that blinks
  const NOISE = /(^|\s)(ui-icon|ui-button-icon|ui-menu-icon|ui-button-icon-space)(\s|$)/;

  function skipped(element) {  // a label whose field says its text; options, which their list names; icons of buttons; handles of dialogs
    if (element.tagName === "LABEL") return Boolean(element.control && /^(checkbox|radio)$/.test(element.control.type));
    if (/ui-resizable-handle/.test(classes(element))) return Boolean(element.closest(".ui-dialog"));
    return element.tagName === "OPTION" || NOISE.test(classes(element)) || element.textContent === BLOCK;
  }

  function add(element, found, style) {
    const [x, y, width, height] = box(element);
    shown.push(element);
    return { n: shown.length, ...found, states: states(element), x, y, width, height, id: element.id, cls: classes(element),
      tag: element.tagName.toLowerCase(),
      scroll: scrollable(element, style) ? [Math.round(element.scrollTop), element.scrollHeight - element.clientHeight] : null };
  }

  const scrollable = (element, style) => element.scrollHeight > element.clientHeight + 1 && /auto|scroll/.test(style.overflowY);

  function walk(element, lines) {
    if (HIDDEN_IDS.has(element.id) || /^(script|style|head|template|defs)$/i.test(element.tagName)) return;
    const style = getComputedStyle(element);
    if (style.display === "none") return;
    const sees = visible(element, style), skip = skipped(element);
    if (sees && element.matches(FIELDS)) return void lines.push(add(element, field(element), style));
    if (sees && element.getAttribute("contenteditable") === "true") {
      return void lines.push(add(element, { kind: "editor", text: "", value: element.innerText.replace(/\n+$/, "") }, style));
    }
    const texts = [...element.childNodes].filter((node) => node instanceof Text && clean(node.data));
    const inner = [...element.children].filter((child) => !skipped(child));
    const mixed = texts.length > 0 && inner.length > 0 && !(uses(element) || element.getAttribute("role") || /^(LI|H[1-6])$/.test(element.tagName));
    let found = null;
    if (sees && element instanceof SVGElement) found = SHAPES.has(element.tagName) ? shape(element, style) : null;
    else if (sees && !skip) found = plain(element, style, mixed ? "" : clean([...element.childNodes].map((node) => (node instanceof Text ? node.data : node instanceof Element ? " " : "")).join("")));
    if (!found && sees && scrollable(element, style)) found = { kind: "area", text: element.id };
    const { bare = false, ...said } = found || {};
    if (found) lines.push(add(element, said, style));
    if (found && (bare || element.tagName === "BUTTON") || element.tagName === "text" && element instanceof SVGElement) return;
    const before = lines.length;
    for (const child of element.childNodes) {
      if (child instanceof Element) walk(child, lines);
      else if (mixed && sees && !skip && child instanceof Text && clean(child.data)) lines.push({ n: 0, kind: "plain", text: clean(child.data), states: [] });
    }
    if (!found && sees && !skip && lines.length === before && uses(element) && !(element instanceof SVGElement)) {
      lines.push(add(element, { kind: "box", text: named(element) }, style));
    }
  }

  // The page's state as text: everything that can be noticed, without what the package writes for its own bookkeeping.
  function whole() {
    const parts = [];
    const read = (element) => {
      if (HIDDEN_IDS.has(element.id) || element.tagName === "SCRIPT" || element.tagName === "STYLE" || element.textContent === BLOCK) return;
      parts.push(`<${element.tagName}`);
      for (const { name, value } of element.attributes) if (!/^data-(wob|tampered|recording)|^aria-activedescendant$/.test(name)) parts.push(`${name}=${value}`);
      if (element.matches(FIELDS)) parts.push(`=${element.type === "checkbox" || element.type === "radio" ? element.checked : element.value}`);
      if (element.tagName === "SELECT") parts.push([...element.selectedOptions].map((option) => option.index).join());
      if (element.tagName === "CANVAS" && element.width * element.height < 1e6) parts.push(element.toDataURL());
      if (element.scrollTop) parts.push(`^${Math.round(element.scrollTop)}`);
      if (element === document.activeElement) parts.push("*");
      let text = "";
      for (const child of element.childNodes) {
        if (child instanceof Text) text += child.data;
        if (!(child instanceof Element)) continue;
        if (clean(text)) parts.push(clean(text));
        text = "";
        read(child);
      }
      if (clean(text)) parts.push(clean(text));
      parts.push(">");
    };
    read(document.body);
    return parts.join(" ") + "|" + String(getSelection());
  }

  function task() {  // an icon in the task's text is named by its class
    const query = document.getElementById("query").cloneNode(true);
    for (const icon of query.querySelectorAll(".ui-icon")) icon.textContent = ` ${picture(icon)} `;
    const spans = [...document.querySelectorAll("#query *")], copies = [...query.querySelectorAll("*")];
    const painted = (span) => !clean(span.textContent) && !clear(getComputedStyle(span).backgroundColor);
    spans.forEach((span, place) => { if (painted(span)) copies[place].textContent += ` ${hex(getComputedStyle(span).backgroundColor)} `; });
    return clean(query.textContent);
  }

  function clicked() {
    return shown.filter((element) => element.dataset && element.dataset.tampered !== undefined).map((element) => shown.indexOf(element) + 1);
  }

  // Images arrive whenever they like, and move what is around them: wait for those that were not seen before.
  const loaded = new Set();
  async function images() {
    const waiting = [...document.images].filter((image) => !image.complete);
    for (const element of document.body.querySelectorAll("*")) {
      const style = getComputedStyle(element);
      for (const [, url] of `${style.content} ${style.backgroundImage}`.matchAll(/url\("([^"]+)"\)/g)) {
        if (loaded.has(url)) continue;
        loaded.add(url);
        const image = new Image();
        image.src = url;
        if (!image.complete) waiting.push(image);
      }
    }
    await Promise.all(waiting.map((image) => new Promise((go) => ["load", "error"].forEach((kind) => plainAdd.call(image, kind, go)))));
  }

  // -- what actions need -------------------------------------------------------------------------------------------------------------------
  const get = (n) => shown[n - 1];

  window.__turnwise = Object.freeze({
    start(seed, mode, later) {
      core.EPISODE_MAX_TIME = 1e15;  // ten thousand years: nothing ends by the clock
      Math.seedrandom(seed);
      core.setDataMode(mode);
      core.startEpisodeReal();
      for (let wait = 0; wait < 50 && !WOB_TASK_READY; wait++) pass(100);
      Math.seedrandom(later);
    },
    begin(seed, mode, later, span, x, y) {
      this.start(seed, mode, later);
      return this.look(span, x, y);
    },
    async look(span, x, y) {  // null: the mouse, which is at x, y, has to be moved to where it is
      pass(span);
      if (span && !still(x, y)) return null;
      await images();
      const active = document.activeElement;  // hidden things lose the focus at the next frame, whenever that is
      if (active && active !== document.body && !active.getClientRects().length) active.blur();
      shown = [];
      const lines = [];
      if (document.body) walk(document.body, lines);
      return { utterance: task(), lines,
        whole: whole(), clicked: clicked(), done: WOB_DONE_GLOBAL, reward: Number(WOB_RAW_REWARD_GLOBAL) || 0,
        reason: String(WOB_REWARD_REASON || ""), page: location.pathname, clock: now };
    },
    at(n) {
      const element = get(n);
      if (!element || !element.isConnected) return null;
      element.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
      const rects = [...element.getClientRects()].filter((rect) => rect.width > 0 && rect.height > 0);
      const at = rects[0] || element.getBoundingClientRect();
      const spots = [[.5, .5], [.25, .5], [.75, .5], [.5, .25], [.5, .75], [.1, .1], [.9, .1], [.1, .9], [.9, .9]];
      for (const [across, down] of spots) {
        const x = at.left + at.width * across, y = at.top + at.height * down, top = document.elementFromPoint(x, y);
        if (top && (top === element || element.contains(top) || top.contains(element) && top.tagName === "LABEL")) return [x, y, this.kind(n)];
      }
      return [at.left + at.width / 2, at.top + at.height / 2, this.kind(n)];
    },
    kind(n) {
      const element = get(n);
      if (!element) return "";
      if (element.isContentEditable) return "text";
      if (element.matches("button, a")) return "none";
      if (!element.matches(FIELDS)) return "other";  // what a click on it focuses may still take text
      if (element.tagName === "SELECT") return "none";
      return /^(checkbox|radio|button|submit|reset|range)$/.test(element.type) ? "none" : /^(date|time)$/.test(element.type) ? "parts" : "text";
    },
    focus(n) {  // and select what is in it, so that typing replaces it
      const element = get(n);
      element.focus();
      if (element.isContentEditable) getSelection().selectAllChildren(element);
      else if (typeof element.select === "function") element.select();
      return document.activeElement === element;
    },
    typing() {  // whether the keyboard now reaches a field
      const active = document.activeElement;
      return Boolean(active && (active.isContentEditable || active.matches("textarea, input:not([type=checkbox]):not([type=radio]):not([type=button])")));
    },
    choose(n, words) {
      const element = get(n), wanted = clean(words).toLowerCase();
      if (!element) return "";
      if (element.tagName === "SELECT") {
        const option = [...element.options].find((known) => clean(known.text).toLowerCase() === wanted);
        if (!option) return "none";
        element.focus();
        if (element.multiple) option.selected = !option.selected; else element.value = option.value, option.selected = true;
        for (const kind of ["input", "change"]) element.dispatchEvent(new Event(kind, { bubbles: true }));
        return "done";
      }
      return mark(element, words);
    },
    copy() {
      const active = document.activeElement;
      const inside = active && typeof active.selectionStart === "number" ? active.value.slice(active.selectionStart, active.selectionEnd) : "";
      clipboard = inside || String(getSelection()) || clipboard;
      (active || document.body).dispatchEvent(new ClipboardEvent("copy", { bubbles: true }));
      return clipboard;
    },
    pasted: () => clipboard,
    scroll(n, sign) {
      const all = n ? [get(n)] : [...document.querySelectorAll("body *"), document.scrollingElement];
      for (const element of all) {
        if (!element || !element.isConnected || !(scrollable(element, getComputedStyle(element)) || element === document.scrollingElement)) continue;
        const before = element.scrollTop;
        element.scrollBy({ top: sign * Math.max(20, element.clientHeight * 0.8), behavior: "instant" });
        if (element.scrollTop !== before) { element.dispatchEvent(new Event("scroll")); return true; }
      }
      return false;
    },
  });

  function mark(element, words) {  // highlight a text inside an element, as dragging over it would
    const nodes = [], walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) nodes.push(walker.currentNode);
    const text = nodes.map((node) => node.data).join(""), wanted = words.trim(), at = wanted ? text.indexOf(wanted) : -1;
    if (at < 0) return "none";
    const place = (offset) => {
      for (const node of nodes) { if (offset <= node.length) return [node, offset]; offset -= node.length; }
      return [nodes.at(-1), nodes.at(-1).length];
    };
    const range = document.createRange();
    range.setStart(...place(at));
    range.setEnd(...place(at + wanted.length));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    element.dispatchEvent(new MouseEvent("mouseup", { bubbles: true }));
    return "done";
  }
})();
