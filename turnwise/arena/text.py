"""The report of an arena as text: sentences that say what matters first, then tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.report.tables import NONE, TextTable, between, p_value, percent, points
from turnwise.report.tables import number as amount

Results = Mapping[str, Any]
PERCENT = "success in per cent"
REMOVED = {  # what a control takes away from its method
    "control-shuffled": "which turn gets which credit",
    "control-random_anchors": "which turns share a state",
    "control-constant": "that turns get different credit",
    "control-flipped": "the sign of the credit",
    "control-omega-0": "the comparison within states",
}
UNEQUAL = 2.0  # times the median's tokens


def sentences(results: Results) -> Iterator[str]:
    """What a reader must know before the tables."""
    for line in results["placebos"]:
        method, removed = line["method"], REMOVED[line["control"]]
        gap = f"{line['control']} − {method}: {points(line['difference'])} points ({between(line['interval'], signed=True)})"
        if line["wins"]:
            yield f"A PLACEBO WINS. {gap}. It is not shown that {method} gains anything by {removed}."
        elif not line["told_apart"]:
            yield f"A placebo cannot be told from its method. {gap}. What it lacks: {removed}."
    overall = results["overall"]
    if overall:
        best = min(overall, key=lambda name: overall[name]["rank"])
        yield f"Best mean: {best}, {percent(overall[best]['mean'])} % ({between(overall[best]['mean_interval'])})."
    for base, lines in results["differences"].items():
        better = [name for name, line in lines.items() if _surely(line) and line["difference"] > 0 and not results["controls"][name]]
        worse = [name for name, line in lines.items() if _surely(line) and line["difference"] < 0 and not results["controls"][name]]
        if lines:
            yield f"Over all environments, surely better than {base}: {', '.join(better) or 'none'}; worse: {', '.join(worse) or 'none'}."
    if results["split_half"] is not None:
        share = results["split_half"]
        told = "they hold" if share >= 0.8 else "close methods cannot be told apart; see the intervals of ranks"
        yield f"Ranks by one half of the seeds and by the other correlate at {share:.2f}: {told}."
    for line in results["predictions"]:
        predicted = f"{line['predicted']} was predicted to win, because {line['why']}"
        yield f"{line['environment']}: {predicted}; it is number {line['place']} of {line['of']}. Best: {', '.join(line['best'])}."
    tokens = {name: line["tokens_sampled"] for name, line in results["costs"].items()}
    median = sorted(tokens.values())[len(tokens) // 2]
    for name, sampled in tokens.items():
        if median and sampled > UNEQUAL * median:
            yield f"{name} samples {sampled / median:.0f} times as many tokens as the median method: read its place with that in mind."
    if results["missing"]:
        yield f"{len(results['missing'])} runs are missing; {results['missing'][0]} is the first."


def _surely(line: Mapping[str, Any]) -> bool:
    return line.get("holm") is not None and line["holm"] < 0.05


def tables(results: Results) -> list[TextTable]:
    seeds = len(results["complete_seeds"])
    found = [_overall(results, seeds)] if results["overall"] else []
    found += [_differences(base, lines) for base, lines in results["differences"].items() if lines]
    found += [_environment(name, lines) for name, lines in results["by_environment"].items() if lines]
    found += [_fits(results), _costs(results), _ends(results), _tuning(results)]
    return [table for table in found if table.rows]


def _overall(results: Results, seeds: int) -> TextTable:
    rows = []
    for name, line in sorted(results["overall"].items(), key=lambda item: item[1]["rank"]):
        low, high = line["rank_interval"]
        cells = [percent(line["mean"]), between(line["mean_interval"]), percent(line["iqm"]), between(line["iqm_interval"])]
        rows.append([name, *cells, f"{line['rank']:g} ({low:.0f}–{high:.0f})"])
    title = f"All environments: {PERCENT}, {seeds} seeds, 95 % intervals over seeds"
    return TextTable(title, ["method", "mean", "95 %", "IQM", "95 %", "rank"], rows)


def _differences(base: str, lines: Mapping[str, Any]) -> TextTable:
    rows = []
    for name, line in sorted(lines.items(), key=lambda item: -item[1]["difference"]):
        tests = [p_value(line["p"]), p_value(line.get("holm")), percent(line["improvement"])]
        seen = NONE if line["detectable"] is None else f"{100 * line['detectable']:.1f}"
        rows.append([name, points(line["difference"]), between(line["interval"], signed=True), *tests, seen])
    headings = ["method", "points", "95 %", "p", "Holm", "P(better) %", "visible"]
    return TextTable(f"Minus {base}, paired by seed; visible: what had been seen with 80 %", headings, rows)


def _environment(name: str, lines: Mapping[str, Any]) -> TextTable:
    rows = []
    for method, line in sorted(lines.items(), key=lambda item: -item[1]["mean"]):
        compared = [points(line[f"to_{base}"]["difference"]) if f"to_{base}" in line else NONE for base in ("grpo", "gigpo")]
        rows.append([method, str(len(line["scores"])), percent(line["mean"]), between(line["interval"]), *compared])
    return TextTable(f"{name}: {PERCENT}", ["method", "seeds", "mean", "95 %", "to grpo", "to gigpo"], rows)


def _fits(results: Results) -> TextTable:
    rows = []
    for curve in results["curves"]:
        fit = curve["fit_attempts"]
        cells = [NONE, NONE] if fit is None else [percent(fit["ceiling"]), amount(fit["half"])]
        rows.append([curve["environment"], curve["method"], percent(curve["success"][0]), percent(curve["success"][-1]), *cells])
    headings = ["environment", "method", "start", "end", "ceiling", "attempts to half of it"]
    return TextTable("Better or faster: a fitted ceiling, and the attempts to half of the way", headings, rows)


def _costs(results: Results) -> TextTable:
    names = ("attempts", "tokens_sampled", "tokens_trained", "tokens_computed", "calls", "seconds")
    rows = [[method, *(amount(line[name]) for name in names)] for method, line in results["costs"].items()]
    return TextTable("What a run takes", ["method", "attempts", "sampled", "trained", "computed", "calls", "seconds"], rows)


def _ends(results: Results) -> TextTable:
    rows = [
        [method, f"{line['runs']:g}", f"{line['not_finished']:g}", f"{line['collapsed']:g}", amount(line["left_out"])]
        for method, line in results["ends"].items()
    ]
    return TextTable("How runs ended", ["method", "runs", "crashed", "collapsed", "attempts left out"], rows)


def _tuning(results: Results) -> TextTable:
    rows = []
    for line in results["tuning"]:
        settings = ", ".join(f"{key}={value}" for key, value in line["settings"].items()) or "defaults"
        rows.append([line["environment"], line["method"], settings, percent(line["mean"]), "chosen" if line["chosen"] else ""])
    return TextTable("Tuning: every setting that was tried", ["environment", "method", "settings", "mean", ""], rows)
