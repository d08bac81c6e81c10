"use strict";
// The calls of a program's attempt as a tree: which call continues which, and which start a conversation of their own.
(() => {
  const T = window.Turnwise;
  const { el } = T;

  // A call is indented below the one that it continues where that one is continued more than once; otherwise a line goes on straight.
  const depths = (calls) => {
    const children = new Map();
    for (const call of calls) children.set(call.parent, (children.get(call.parent) ?? 0) + 1);
    const known = new Map();
    for (const call of calls) {
      const before = known.get(call.parent);
      known.set(call.number, before === undefined ? 0 : before + (children.get(call.parent) > 1 ? 1 : 0));
    }
    return known;
  };

  // In the order of the tree: every line of conversation from its first call to its last.
  const ordered = (calls) => {
    const below = new Map();
    for (const call of calls) below.set(call.parent, [...(below.get(call.parent) ?? []), call]);
    const here = new Set(calls.map((call) => call.number));
    const roots = calls.filter((call) => call.parent === null || !here.has(call.parent));
    const found = [];
    const waiting = [...roots].reverse();
    while (waiting.length) {
      const call = waiting.pop();
      found.push(call);
      waiting.push(...(below.get(call.number) ?? []).reverse());
    }
    return found;
  };

  T.callTree = (attempt, pick) => {
    const calls = attempt.calls ?? [];
    if (!calls.length) return null;
    const depth = depths(calls);
    const roots = new Set(calls.filter((call) => call.parent === null).map((call) => call.number));
    return el(
      "details",
      { class: "calls", open: calls.length < 40 },
      el("summary", null, `The attempt: ${calls.length} calls in ${roots.size} ${roots.size === 1 ? "conversation" : "conversations"}`),
      el(
        "ol",
        { "aria-label": "Calls of the attempt" },
        ordered(calls).map((call) =>
          el(
            "li",
            { class: roots.has(call.number) ? "root" : "", "data-depth": Math.min(depth.get(call.number), 8) },
            el(
              "button",
              {
                type: "button",
                class: call.id === attempt.id ? "quiet here" : "quiet",
                title: call.asked,
                onclick: () => pick(call.id, call.t),
              },
              el("span", { class: "dim" }, `${roots.has(call.number) ? "◆" : "↳"} call ${call.number + 1} `),
              call.said || "(nothing)",
            ),
          ),
        ),
      ),
    );
  };
})();
