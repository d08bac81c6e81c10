"use strict";
// The source of answers: a server on this machine, or the file that contains these pages. The pages do not know which.
(() => {
  const T = window.Turnwise;
  const inside = document.getElementById("data");
  const file = inside ? JSON.parse(inside.textContent) : null;
  const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g; // half a character has no address
  const encode = (text) => encodeURIComponent(String(text).replace(LONE, "\ufffd")).replace(/[!'()*]/g, (c) => "%" + c.charCodeAt(0).toString(16).toUpperCase());
  const key = (name, words) =>
    name +
    "?" +
    Object.keys(words)
      .sort()
      .map((word) => `${encode(word).replace(/%2F/g, "/")}=${encode(words[word])}`)
      .join("&");
  const known = new Map();
  const MOST = 60; // answers that stay in memory
  T.file = file;
  T.isLive = !file;

  class Refused extends Error {}

  const fetched = async (name, words) => {
    const found = await fetch(`/api/${name}?${new URLSearchParams(words)}`);
    const answer = await found.json().catch(() => ({ error: `the server answered ${found.status} ${found.statusText}` }));
    if (!found.ok) throw new Refused(answer.error);
    return answer;
  };

  const embedded = async (name, words) => {
    const answer = file.answers[key(name, words)];
    if (answer === undefined) throw new Refused("This is not in the file: a report holds only some attempts. `turnwise view` shows all.");
    return answer;
  };

  T.ask = (name, words = {}) => (file ? embedded(name, words) : fetched(name, words));

  // What cannot change any more (an iteration's attempts) is requested once.
  T.askOnce = (name, words) => {
    const place = key(name, words);
    if (!known.has(place)) {
      known.set(
        place,
        T.ask(name, words).catch((error) => (known.delete(place), Promise.reject(error))),
      );
      if (known.size > MOST) known.delete(known.keys().next().value);
    }
    return known.get(place);
  };
  T.forget = () => known.clear();

  T.inFile = (name, words) => !file || Object.hasOwn(file.answers, key(name, words));

  T.picture = (words) => {
    if (!file) return `/picture?${new URLSearchParams(words)}`;
    return file.pictures[key("picture", words)] ?? null;
  };

  // Runs that differ only by their seed, with a name for each setting. A file knows those of all its runs.
  T.settings = async (runs) => {
    if (!file) return T.ask("settings", { runs: JSON.stringify(runs) });
    const all = file.answers["settings?"];
    const wanted = new Set(runs);
    const left = all.settings.map((each) => ({ ...each, runs: each.runs.filter(({ run }) => wanted.has(run)) }));
    return { ...all, settings: left.filter((each) => each.runs.length) };
  };

  // Searching texts: the server reads its files; in a file, the attempts that it contains.
  T.search = async (words) => {
    if (!file) return T.ask("search", words);
    const wanted = words.text.toLowerCase();
    const hits = [];
    for (const [place, attempt] of Object.entries(file.answers)) {
      if (!place.startsWith("attempt?")) continue;
      const { id, ...where } = Object.fromEntries(new URLSearchParams(place.slice(8)));
      if (where.run !== words.run || where.part !== words.part || where.iteration !== String(words.iteration)) continue;
      attempt.turns.forEach((turn, t) => {
        for (const part of ["observation", "thought", "action", "response"]) {
          const text = String(turn[part] ?? "");
          const at = text.toLowerCase().indexOf(wanted);
          if (at < 0) continue;
          const start = Math.max(0, at - 40);
          hits.push({ id, t, task: attempt.task, where: part, text: (start ? "…" : "") + text.slice(start, at + wanted.length + 60) });
          break;
        }
      });
    }
    return { hits: hits.slice(0, 200), more: hits.length > 200 };
  };

  // A run's curves, kept up to date: each request brings only new lines.
  T.Curves = class {
    constructor(run) {
      Object.assign(this, { run, columns: new Map(), lines: 0, after: 0, mark: 0, state: "", damaged: 0 });
    }
    async look() {
      const found = await T.ask("metrics", file ? { run: this.run } : { run: this.run, after: this.after, mark: this.mark });
      if (found.anew || file) Object.assign(this, { columns: new Map(), lines: 0, damaged: 0 });
      const added = new Map(Object.entries(found.columns));
      for (const name of new Set([...this.columns.keys(), ...added.keys()])) {
        const old = this.columns.get(name) ?? Array(this.lines).fill(null);
        this.columns.set(name, old.concat(added.get(name) ?? Array(found.lines).fill(null)));
      }
      this.lines += found.lines;
      this.damaged += found.damaged;
      Object.assign(this, { after: found.after, mark: found.mark, state: found.state });
      return found.lines > 0 || found.anew;
    }
    // The points at which a metric was measured: iterations and values.
    points(name, positive) {
      const iterations = this.columns.get("iteration") ?? [];
      const values = this.columns.get(name) ?? [];
      const x = [],
        y = [],
        at = [];
      values.forEach((value, index) => {
        if (value === null || (iterations[index] ?? null) === null || (positive && !(value > 0))) return;
        x.push(iterations[index]);
        y.push(value);
        at.push(index);
      });
      return { x, y, at };
    }
    last(name) {
      const { y } = this.points(name);
      return y.length ? y[y.length - 1] : null;
    }
  };
})();
