"""A comparison as tables, for the terminal and as Markdown. The same cells in both; only the frame differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group as Rendered
from rich.table import Table as RichTable
from rich.text import Text

from turnwise.report.efficiency import MEASURES, Cost
from turnwise.report.progress import duration
from turnwise.util.statistics import Interval

if TYPE_CHECKING:
    from turnwise.report.comparison import Comparison, Pair

NONE, HOLM = "–", "Holm"
WIDTH = 112  # of a log or a pipe, which has no width


@dataclass(frozen=True)
class TextTable:
    """Headings and cells of text; the first column names the row."""

    title: str
    headings: list[str]
    rows: list[list[str]]


def tables_of(comparison: Comparison) -> list[TextTable]:
    """Groups, pairs (seeds, tasks), the cost of the target, and what else the groups differ in."""
    tables = [_groups(comparison)]
    if any(pair.over_seeds for pair in comparison.pairs):
        tables.append(_over_seeds(comparison.pairs))
    if any(pair.over_tasks for pair in comparison.pairs):
        tables.append(_over_tasks(comparison.pairs))
    if comparison.types:
        rows = [[one.name, str(one.tasks), *map(percent, one.success)] for one in comparison.types]
        headings = ["type", "tasks", *(group.label for group in comparison.groups)]
        tables.append(TextTable("Success % by type of task, mean over seeds", headings, rows))
    if comparison.target is not None:
        tables.append(_costs(comparison))
    if comparison.tracks:
        tables.append(_tracks(comparison))
    if comparison.also_differ:
        rows = [
            [key, "; ".join(f"{value} ({', '.join(labels)})" for value, labels in of.items())] for key, of in comparison.also_differ.items()
        ]
        title = "The groups also differ in these settings, and a difference may come from them"
        tables.append(TextTable(title, ["setting", "values"], rows))
    return tables


def _heading(comparison: Comparison) -> str:
    """A single key that distinguishes the groups is the heading of the column, with its values below."""
    return comparison.named_by[0] if len(comparison.named_by) == 1 else "group"


def _groups(comparison: Comparison) -> TextTable:
    where = {"last": "last evaluation", "best": "best evaluation"}.get(comparison.at, f"iteration {comparison.at}")
    panel = comparison.panel
    alike = ""
    if panel is not None:
        again = f" × {panel['repeats']}" if panel["repeats"] > 1 else ""
        alike = f"; {panel['size']} tasks{again} of {panel['environment']}/{panel['split']}, panel {panel['hash'][:8]}"
    rows = []
    for group in comparison.groups:
        spread = NONE if len(group.successes) < 2 else f"{100 * min(group.successes):.1f} to {100 * max(group.successes):.1f}"
        cells = [percent(group.success), between(group.over_seeds), between(group.over_tasks), spread]
        rows.append([group.label, str(len(group.seeds)), *cells])
    headings = [_heading(comparison), "seeds", "success %", "95 % over seeds", "95 % over tasks", "least to most"]
    return TextTable(f"Success, {where}{alike}", headings, rows)


def _over_seeds(pairs: Sequence[Pair]) -> TextTable:
    rows = []
    for pair in pairs:
        cells = [NONE] * 8
        if (test := pair.over_seeds) is not None:
            n = f"{test.n}{'' if test.paired else ' (unpaired)'}"
            effect = NONE if test.effect_d is None else f"{test.effect_d:+.2f}"
            tested = map(p_value, (test.p_t, test.holm_t, test.p_exact, test.holm_exact))
            cells = [n, points(test.difference), between(test.interval, signed=True), *tested, effect]
        rows.append([f"{pair.one} − {pair.other}", *cells])
    headings = ["difference", "seeds", "points", "95 %", "p (t)", HOLM, "p (exact)", HOLM, "d"]
    return _tests("Over seeds: would other seeds give the same?", headings, rows)


def _over_tasks(pairs: Sequence[Pair]) -> TextTable:
    rows = []
    for pair in pairs:
        cells = [NONE] * 6
        if (test := pair.over_tasks) is not None:
            tested = map(p_value, (test.p, test.holm))
            cells = [str(test.n), points(test.difference), between(test.interval, signed=True), *tested, f"{test.effect_h:+.2f}"]
        rows.append([f"{pair.one} − {pair.other}", *cells])
    headings = ["difference", "tasks", "points", "95 %", "p (signs)", HOLM, "h"]
    return _tests("Over tasks: would other tasks give the same, with these trained models?", headings, rows)


def _tests(title: str, headings: list[str], rows: list[list[str]]) -> TextTable:
    """A single pair needs no correction."""
    shown = [column for column, heading in enumerate(headings) if heading != HOLM or len(rows) > 1]
    return TextTable(title, [headings[column] for column in shown], [[row[column] for column in shown] for row in rows])


def _costs(comparison: Comparison) -> TextTable:
    rows = []
    for group in comparison.groups:
        if group.cost is None:
            rows.append([group.label, NONE, *[NONE] * len(MEASURES)])
        else:
            rows.append([group.label, f"{group.cost.reached} of {group.cost.runs}", *(_cost(group.cost, name) for name in MEASURES)])
    title = f"Until {percent(comparison.target)} % was first measured: median over seeds (least to most)"
    return TextTable(title, [_heading(comparison), "reached by", "iterations", "turns", "tokens", "training time"], rows)


def _tracks(comparison: Comparison) -> TextTable:
    """Means over seeds by quarters of training and over all of it, and the least and the most of any run in any iteration."""
    rows = []
    for track in comparison.tracks:
        cells = [NONE] * 8
        if track.mean:
            cells = [f"{track.iterations[0]} to {track.iterations[-1]}", *map(number, quarters(track.mean))]
            cells += map(number, (track.overall, min(track.low), max(track.high)))
        rows.append([track.metric, track.label, *cells])
    columns = ["metric", _heading(comparison), "iterations", "1st quarter", "2nd", "3rd", "4th", "mean", "least", "most"]
    return TextTable("Over training, mean over seeds", columns, rows)


def quarters(values: list[float]) -> list[float | None]:
    """The means of four parts as equal as possible, in order; None for a part without a value."""
    edges = [len(values) * part // 4 for part in range(5)]
    parts = [values[start:end] for start, end in pairwise(edges)]
    return [math.fsum(part) / len(part) if part else None for part in parts]


def number(value: float | None) -> str:
    """Four digits, as text for a table."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _cost(cost: Cost, name: str) -> str:
    def word(value: float) -> str:
        if math.isinf(value):
            return "not reached"
        return duration(value) if name == "seconds" else f"{value:,.0f}"

    return f"{word(cost.median[name])} ({word(cost.least[name])} to {word(cost.most[name])})" if cost.reached else "not reached"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f}"


def points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")


def between(interval: Interval | None, signed: bool = False) -> str:
    if interval is None:
        return NONE
    return " to ".join(points(end) if signed else percent(end) for end in interval)


def p_value(p: float | None) -> str:
    return NONE if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def to_rich(comparison: Comparison) -> Rendered:
    return rendered(tables_of(comparison), comparison.notes)


def to_markdown(comparison: Comparison) -> str:
    return as_markdown(tables_of(comparison), comparison.notes)


def rendered(tables: Sequence[TextTable], notes: Sequence[str]) -> Rendered:
    """Tables and the notes below them for a terminal."""
    parts: list[RichTable | Text] = []
    for table in tables:
        shown = RichTable(title=Text(table.title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False, title_style="bold")
        for number, heading in enumerate(table.headings):
            shown.add_column(Text(heading), justify="left" if number == 0 else "right", overflow="fold")
        for row in table.rows:
            shown.add_row(*(Text(cell) for cell in row))
        parts.append(shown)
    return Rendered(*parts, *(Text(f"- {note}") for note in notes))


def as_markdown(tables: Sequence[TextTable], notes: Sequence[str]) -> str:
    """The same for a page."""

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"

    lines: list[str] = []
    for table in tables:
        rule = "|---|" + "---:|" * (len(table.headings) - 1)
        lines += [f"**{table.title}**", "", row(table.headings), rule, *map(row, table.rows), ""]
    return "\n".join(lines + [f"- {note}" for note in notes]).rstrip() + "\n"
