"use strict";
// Curves and stacked areas, drawn as SVG. All charts of a page share one cursor: the iteration under the mouse, or moved by the arrow
// keys; every legend shows the values there.
(() => {
  const T = window.Turnwise;
  const { el, svg } = T;
  const SPACE = { left: 46, right: 10, top: 22, bottom: 34 };
  const HEIGHT = 200;

  T.Cursor = class {
    constructor() {
      this.x = null;
      this.heard = [];
    }
    move(x) {
      if (x === this.x) return;
      this.x = x;
      for (const hear of this.heard) hear(x);
    }
  };

  const ticks = (low, high, count) => {
    const span = high - low || 1;
    const rough = span / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const found = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) found.push(+value.toPrecision(12));
    return found;
  };

  const nearest = (xs, x) => {
    let low = 0,
      high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  };

  const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

  // Marks of a curve's points: curves differ by shape and by dashes, not by colour alone.
  const SHAPES = [
    (x, y, r) => svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r }),
    (x, y, r) => svg("rect", { x: (x - r).toFixed(1), y: (y - r).toFixed(1), width: 2 * r, height: 2 * r }),
    (x, y, r) => svg("path", { d: `M${x} ${y - 1.3 * r}L${x + 1.2 * r} ${y + r}L${x - 1.2 * r} ${y + r}Z` }),
    (x, y, r) => svg("path", { d: `M${x} ${y - 1.4 * r}L${x + 1.4 * r} ${y}L${x} ${y + 1.4 * r}L${x - 1.4 * r} ${y}Z` }),
  ];
  const spot = (each, x, y, r) => {
    const node = SHAPES[(each.shape ?? 0) % SHAPES.length](x, y, r);
    node.setAttribute("class", `dot ${each.look}`);
    return node;
  };
  // A curve's line and mark, as they are drawn, for a legend.
  T.swatch = (each) =>
    svg(
      "svg",
      { class: "line-swatch", width: 26, height: 10, "aria-hidden": "true" },
      svg("path", { class: `curve ${each.look}`, d: "M1 5L25 5" }),
      each.dots ? spot(each, 13, 5, 3) : null,
    );

  // What charts of both kinds share: frame, axes with their names, cursor, legend, keyboard.
  class Chart {
    constructor({ title, hint, y, x = "iteration", format = T.number, cursor, onpick }) {
      Object.assign(this, { title, format, cursor, onpick, width: 400, names: { x, y: y ?? title } });
      this.legend = el("div", { class: "legend" });
      this.svg = svg("svg", {
        class: "plot",
        height: HEIGHT,
        role: "img",
        tabindex: 0,
        "aria-label": `${title}. Across: ${x}. Up: ${y ?? title}. Arrow keys move through iterations.`,
      });
      this.head = el("div", { class: "chart-head" }, el("h3", null, title), hint ? T.hint(title, hint) : null);
      this.node = el("section", { class: "chart card" }, this.head, this.legend, this.svg);
      this.svg.addEventListener("pointermove", (event) => this.point(event));
      this.svg.addEventListener("pointerleave", () => this.cursor.move(null));
      this.svg.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("click", () => this.cursor.x !== null && this.onpick?.(this.cursor.x));
      this.cursor.heard.push((x) => this.mark(x));
      new ResizeObserver(([entry]) => {
        const width = Math.round(entry.contentRect.width);
        if (width && width !== this.width) {
          this.width = width;
          this.draw();
        }
      }).observe(this.node);
    }
    point(event) {
      if (!this.xs.length) return;
      const box = this.svg.getBoundingClientRect();
      const share = (event.clientX - box.left - SPACE.left) / (this.width - SPACE.left - SPACE.right);
      this.cursor.move(this.xs[nearest(this.xs, this.low + share * (this.high - this.low))]);
    }
    key(event) {
      if (!this.xs.length) return;
      const at = this.cursor.x === null ? this.xs.length - 1 : nearest(this.xs, this.cursor.x);
      const last = this.xs.length - 1;
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
      if (event.key === "Enter" && this.cursor.x !== null) this.onpick?.(this.cursor.x);
      if (to === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      this.cursor.move(this.xs[Math.min(last, Math.max(0, to))]);
      T.say(
        `${this.title}, ${this.names.x} ${this.cursor.x}: ${this.read(this.cursor.x)
          .map(([name, value]) => `${name} ${value}`)
          .join(", ")}`,
      );
    }
    px(x) {
      return SPACE.left + ((x - this.low) / (this.high - this.low || 1)) * (this.width - SPACE.left - SPACE.right);
    }
    py(y) {
      return HEIGHT - SPACE.bottom - ((y - this.bottom) / (this.top - this.bottom || 1)) * (HEIGHT - SPACE.top - SPACE.bottom);
    }
    // The texts of an axis, with as many more digits as it takes to tell its values apart.
    labels(values) {
      for (let more = 0; ; more++) {
        const found = values.map((value) => this.format(value, more));
        if (more === 6 || new Set(found).size === found.length) return found;
      }
    }
    frame() {
      const right = this.width - SPACE.right;
      const values = ticks(this.bottom, this.top, 4);
      const labels = this.labels(values);
      const parts = values.map((value, index) => [
        svg("line", { class: "grid", x1: SPACE.left, x2: right, y1: this.py(value), y2: this.py(value) }),
        svg("text", { class: "tick", x: SPACE.left - 6, y: this.py(value) + 3.5, "text-anchor": "end" }, labels[index]),
      ]);
      for (const value of ticks(this.low, this.high, Math.max(2, Math.floor(this.width / 90)))) {
        if (!Number.isInteger(value)) continue;
        parts.push(svg("text", { class: "tick", x: this.px(value), y: HEIGHT - 19, "text-anchor": "middle" }, value));
      }
      const middle = (SPACE.left + right) / 2;
      parts.push(svg("text", { class: "axis", x: middle, y: HEIGHT - 5, "text-anchor": "middle" }, this.names.x));
      parts.push(svg("text", { class: "axis", x: 0, y: 11 }, `↑ ${this.names.y}`));
      return parts;
    }
    range() {
      this.low = this.xs.length ? this.xs[0] : 0;
      this.high = this.xs.length ? this.xs[this.xs.length - 1] : 1;
      if (this.low === this.high) this.high = this.low + 1;
    }
    draw() {
      if (!this.xs) return;
      this.svg.setAttribute("width", this.width);
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
      this.line = svg("line", { class: "cursor", y1: SPACE.top, y2: HEIGHT - SPACE.bottom, visibility: "hidden" });
      this.dots = svg("g", null);
      const empty = this.xs.length
        ? null
        : svg("text", { class: "empty", x: this.width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "not measured yet");
      T.show(this.svg, this.xs.length ? this.frame() : null, this.xs.length ? this.shapes() : null, this.line, this.dots, empty);
      this.mark(this.cursor.x);
    }
    mark(x) {
      if (!this.line) return;
      const on = x !== null && this.xs.length > 0;
      this.line.setAttribute("visibility", on ? "visible" : "hidden");
      if (on) {
        this.line.setAttribute("x1", this.px(x));
        this.line.setAttribute("x2", this.px(x));
      }
      T.show(this.dots, on ? this.spots(x) : null);
      this.label(x);
    }
    spots() {
      return null;
    }
    label(x) {
      const at = x ?? this.xs[this.xs.length - 1];
      const when = x === null || !this.xs.length ? null : el("span", { class: "when" }, `${this.names.x} ${x}`);
      T.show(
        this.legend,
        this.xs.length
          ? this.read(at).map(([name, value, sign, hint]) =>
              el("span", { class: "entry", title: hint }, sign, `${name} `, el("b", null, value)),
            )
          : null,
        when,
      );
    }
  }

  // series: [{name, x, y, low, high, look, shape, dots, unnamed}], look: classes that give the colour and the dashes. What is unnamed is drawn
  // but is not in the legend.
  T.LineChart = class extends Chart {
    constructor(settings) {
      super(settings);
      Object.assign(this, { share: settings.share, zero: settings.zero });
    }
    update(series) {
      this.series = series.filter((each) => each.x.length);
      this.xs = [...new Set(this.series.flatMap((each) => each.x))].sort((a, b) => a - b);
      this.range();
      const values = this.series
        .flatMap((each) => [...each.y, ...(each.low ?? []), ...(each.high ?? [])])
        .filter((value) => value !== null && value !== undefined);
      let low = values.reduce((a, b) => Math.min(a, b), Infinity),
        high = values.reduce((a, b) => Math.max(a, b), -Infinity);
      if (this.share) [low, high] = [0, 1];
      else if (this.zero || (low > 0 && low < 0.5 * high)) low = Math.min(0, low);
      const room = (high - low || Math.abs(high) || 1) * 0.06;
      this.bottom = this.share || low === 0 ? low : low - room;
      this.top = this.share ? 1 : high + room;
      this.draw();
      return this;
    }
    shapes() {
      return this.series.map((each) => {
        const points = each.x.map((x, index) => [this.px(x), this.py(each.y[index])]);
        const parts = [];
        if (each.low) {
          const up = each.x.map((x, index) => [this.px(x), this.py(each.high[index] ?? each.y[index])]);
          const down = each.x.map((x, index) => [this.px(x), this.py(each.low[index] ?? each.y[index])]).reverse();
          if (each.low.some((value, index) => value !== null && value !== each.high[index]))
            parts.push(svg("path", { class: `band ${each.look}`, d: path([...up, ...down]) + "Z" }));
        }
        parts.push(svg("path", { class: `curve ${each.look}`, d: path(points) }));
        if ((each.dots && points.length < 80) || points.length === 1) parts.push(points.map(([x, y]) => spot(each, x, y, 3)));
        return parts;
      });
    }
    // The value at an iteration; a curve that was not measured there gives its last earlier one.
    at(each, x) {
      let index = nearest(each.x, x);
      if (each.x[index] > x) index -= 1;
      return index;
    }
    read(x) {
      return this.series
        .filter((each) => !each.unnamed)
        .map((each) => {
        const index = this.at(each, x);
        if (index < 0) return [each.name, "–", T.swatch(each)];
        const band = each.low && each.low[index] !== null ? ` (${this.format(each.low[index])} to ${this.format(each.high[index])})` : "";
        const older = each.x[index] === x ? "" : ` at ${each.x[index]}`;
        return [each.name, this.format(each.y[index]) + band + older, T.swatch(each), each.hint];
      });
    }
    spots(x) {
      return this.series.map((each) => {
        const index = nearest(each.x, x);
        return each.x[index] === x && !each.unnamed ? spot(each, this.px(x), this.py(each.y[index]), 4) : null;
      });
    }
  };

  // layers: [{name, y, look}] over the same xs; each is stacked on the one before.
  T.StackChart = class extends Chart {
    constructor(settings) {
      super(settings);
      this.share = settings.share;
    }
    update(xs, layers) {
      this.xs = xs;
      this.layers = layers.filter((layer) => layer.y.some((value) => value));
      this.range();
      this.sums = xs.map((_, index) => this.layers.reduce((sum, layer) => sum + (layer.y[index] ?? 0), 0));
      this.bottom = 0;
      this.top = this.share ? 1 : this.sums.reduce((a, b) => Math.max(a, b), 0) * 1.04 || 1;
      this.draw();
      return this;
    }
    shapes() {
      const base = this.xs.map(() => 0);
      return this.layers.map((layer) => {
        const below = this.xs.map((x, index) => [this.px(x), this.py(base[index])]).reverse();
        layer.y.forEach((value, index) => (base[index] += value ?? 0));
        const above = this.xs.map((x, index) => [this.px(x), this.py(base[index])]);
        if (this.xs.length === 1)
          (above.push([this.width - SPACE.right, above[0][1]]), below.unshift([this.width - SPACE.right, below[0][1]]));
        return svg("path", { class: `area ${layer.look}`, d: path([...above, ...below]) + "Z" });
      });
    }
    read(x) {
      const index = nearest(this.xs, x);
      return this.layers.map((layer) => [layer.name, this.format(layer.y[index] ?? 0), el("i", { class: `swatch ${layer.look}` })]);
    }
  };
})();
