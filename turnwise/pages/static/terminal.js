"use strict";
// A turn of an environment that is a terminal: the prompt with its command, what the command printed, and how it ended.
// Colours become classes; every other escape sequence is left out, and what is left of control characters is shown by name.
(() => {
  const T = window.Turnwise;
  const { el } = T;
  const ESCAPE = /\u001b(?:\[([0-9;:?<=>]*)[ -/]*([@-~])|[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[ -/]+[0-~]|[0-OQ-WYZ\\`-~])/g;
  const PROMPT = /(?:^|\n)([^\n]{0,300}[$#]) ?$/; // the last line of what a terminal shows before a command
  const EXTENDED = new Map([
    [5, 1],
    [2, 3],
  ]); // how many numbers follow "38;5" and "38;2"

  // The numbers of a colour sequence, applied to how the text looks so far.
  const styled = (look, codes) => {
    const next = new Map(look);
    for (let at = 0; at < codes.length; at += 1) {
      const code = codes[at];
      if (code === 0) next.clear();
      else if (code === 1) next.set("weight", "bold");
      else if (code === 4) next.set("line", "underlined");
      else if (code === 7) next.set("swap", "swapped");
      else if (code === 22) next.delete("weight");
      else if (code === 24) next.delete("line");
      else if (code === 27) next.delete("swap");
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) next.set("colour", `colour-${code % 10}`);
      else if (code === 39) next.delete("colour");
      else if (code === 38 || code === 48) at += 1 + (EXTENDED.get(codes[at + 1]) ?? 0);
    }
    return next;
  };

  // A line that returns to its start is written over.
  const settled = (text) =>
    text
      .replace(/\r+\n/g, "\n")
      .split("\n")
      .map((line) => line.split("\r").findLast((part) => part !== "") ?? "")
      .join("\n");

  T.coloured = (source) => {
    const text = settled(String(source ?? ""));
    const nodes = [];
    let look = new Map();
    let from = 0;
    const add = (part) => {
      if (part) nodes.push(look.size ? el("span", { class: [...look.values()].join(" ") }, part) : el("span", null, part));
    };
    for (const found of text.matchAll(ESCAPE)) {
      add(text.slice(from, found.index));
      from = found.index + found[0].length;
      if (found[2] === "m" && !/[?<=>]/.test(found[1])) look = styled(look, found[1].split(/[;:]/).map(Number));
    }
    add(text.slice(from));
    return nodes;
  };

  // What a terminal shows before a command: text, and a prompt on its last line.
  const screen = (observation) => {
    const text = String(observation ?? "");
    const found = PROMPT.exec(text);
    return found ? { text: text.slice(0, found.index), prompt: found[1] } : { text, prompt: "$" };
  };

  // Without the exit code that is told to the agent: it is shown below.
  const printed = (attempt, turn, t) => {
    const last = turn.info?.env?.output;
    const text = t + 1 < attempt.turns.length ? screen(attempt.turns[t + 1].observation).text : typeof last === "string" ? last : "";
    const told = `[exit code ${turn.info?.env?.exit_code}]`;
    return text === told || text.endsWith(`\n${told}`) ? text.slice(0, -told.length).replace(/\n$/, "") : text;
  };

  const ending = (turn) => {
    const { exit_code: code, limit } = turn.info?.env ?? {};
    return [
      Number.isInteger(code) ? el("span", { class: `exit ${code === 0 ? "" : "failed"}` }, `exit ${code}`) : null,
      typeof limit === "string" && limit ? el("span", { class: "exit failed" }, limit) : null,
    ];
  };

  // `folded` shows a long text in part; `more` is what else a card has about the turn.
  T.terminal = (attempt, turn, t, folded, more) => {
    const { text, prompt } = screen(turn.observation);
    const output = printed(attempt, turn, t);
    return el(
      "div",
      { class: "terminal" },
      t === 0 && text ? folded(text, "told", T.coloured) : null,
      turn.thought ? folded(turn.thought, "thought") : null,
      el("div", { class: "action" }, el("span", { class: "prompt" }, `${prompt} `), turn.action || "(nothing)"),
      output ? folded(output, "output", T.coloured) : null,
      el("div", { class: "foot" }, ending(turn), more),
    );
  };
})();
