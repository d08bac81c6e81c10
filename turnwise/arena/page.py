"""The report of an arena as one HTML file: sentences, pictures, tables. It has no script and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from turnwise.arena.results import THRESHOLDS
from turnwise.arena.text import Results, sentences, tables
from turnwise.report.tables import TextTable, between, percent, points

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #66727f; --line: #d7dde3; --page: #fff; --mark: #1667c7; --alarm: #b3261e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ee; --soft: #98a4b1; --line: #38424d; --page: #12171d; --mark: #6aa9f4; --alarm: #ff8a80 }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 62rem; margin: 2rem auto }
body { padding: 0 1rem } h1 { font-size: 1.7rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem }
p.note { color: var(--soft); margin: .2rem 0 } li.alarm { color: var(--alarm); font-weight: 600 }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem }
th, td { padding: .22rem .7rem; text-align: right; white-space: nowrap } th:first-child, td:first-child { text-align: left }
th { border-bottom: 1px solid var(--ink); font-weight: 600 } td { border-bottom: 1px solid var(--line) }
svg { max-width: 100%; height: auto } svg text { fill: var(--ink); font: 12px system-ui, sans-serif } svg .soft { fill: var(--soft) }
svg .axis { stroke: var(--line) } svg .zero { stroke: var(--soft); stroke-dasharray: 3 3 }
.charts { display: flex; flex-wrap: wrap; gap: 1rem }
"""
COLOURS = ("#1667c7", "#d95f02", "#1b9e77", "#7570b3", "#c2317f", "#66a61e", "#b8860b", "#5f6b76", "#00838f", "#a23b3b")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
ROW, LEFT, WIDE = 20, 190, 700
SHOWN = 8  # methods in a picture of lines; tables have all


def page(results: Results) -> str:
    """The file."""
    title = f"Arena {results['arena']}"
    said = "".join(f"<li{' class=alarm' if text.startswith('A PLACEBO') else ''}>{escape(text)}</li>" for text in sentences(results))
    parts = [f"<h1>{escape(title)}</h1>", f"<ul>{said}</ul>", *_pictures(results)]
    parts += [f"<h2>{escape(table.title)}</h2><div class=scroll>{_table(table)}</div>" for table in tables(results)]
    seeds = ", ".join(map(str, results["seeds"]))
    parts.append(f"<p class=note>Arena file {escape(results['hash'])}. Final seeds {escape(seeds)}.</p>")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    return f"<!doctype html><html lang=en><head>{head}{policy}<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"


def _pictures(results: Results) -> Iterable[str]:
    overall = results["overall"]
    order = sorted(overall, key=lambda name: overall[name]["rank"])
    if order:
        yield "<h2>Success over all environments</h2><p class=note>Mean and 95 % interval over seeds, in per cent.</p>"
        rows = [(name, overall[name]["mean"], overall[name]["mean_interval"]) for name in order]
        yield _intervals(rows, results["controls"], 0.0, 1.0, percent)
    for base, lines in results["differences"].items():
        if lines:
            rows = [
                (name, line["difference"], line["interval"])
                for name, line in sorted(lines.items(), key=lambda item: -item[1]["difference"])
            ]
            ends = [abs(end) for _, middle, interval in rows for end in (*(interval or ()), middle)]
            widest = min(1.0, 1.1 * max(ends, default=0.1) or 0.1)
            yield f"<h2>Minus {escape(base)}, in points</h2><p class=note>Paired by seed; 95 % intervals without correction.</p>"
            yield _intervals(rows, results["controls"], -widest, widest, points)
    best = [name for name in order if not results["controls"][name]][:SHOWN]
    if best:
        lines_of = {name: (THRESHOLDS, overall[name]["profile"]) for name in best}
        yield "<h2>Performance profiles</h2><p class=note>The share of runs whose success exceeds a threshold.</p>"
        yield f"<div class=charts>{_lines(lines_of, 'success above', 'share of runs', best)}</div>"
    charts = []
    for environment in results["environments"]:
        found = {line["method"]: (line["attempts"], line["success"]) for line in results["curves"] if line["environment"] == environment}
        if shown := {name: found[name] for name in best if name in found}:
            charts.append(_lines(shown, f"{environment}: attempts", "success", best))
    if charts:
        yield f"<h2>Curves</h2><p class=note>Mean over seeds.</p><div class=charts>{''.join(charts)}</div>"


def _table(table: TextTable) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in table.headings)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _intervals(rows: Sequence[tuple[str, float, Any]], controls: Mapping[str, bool], low: float, high: float, word: Any) -> str:
    """A dot and a line for each row; controls are grey."""

    def x(value: float) -> float:
        return LEFT + (min(max(value, low), high) - low) / (high - low) * (WIDE - LEFT - 130)

    origin, bottom = f"{x(max(low, 0.0)):.1f}", ROW * len(rows)
    marks = [f'<line class="{"zero" if low < 0 else "axis"}" x1="{origin}" x2="{origin}" y1="0" y2="{bottom}"/>']
    for i, (name, middle, interval) in enumerate(rows):
        y, colour = ROW * i + ROW / 2, "#8a96a3" if controls[name] else "var(--mark)"
        if interval is not None:
            ends = f'x1="{x(interval[0]):.1f}" x2="{x(interval[1]):.1f}" y1="{y}" y2="{y}"'
            marks.append(f'<line {ends} style="stroke:{colour};stroke-width:2"/>')
        marks.append(f'<circle cx="{x(middle):.1f}" cy="{y}" r="4" style="fill:{colour}"/>')
        marks.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        shown = word(middle) + ("" if interval is None else f"  ({between(interval, signed=low < 0)})")
        marks.append(f'<text class="soft" x="{WIDE - 122}" y="{y + 4}">{escape(shown)}</text>')
    return f'<svg viewBox="0 0 {WIDE + 60} {ROW * len(rows)}" width="{WIDE + 60}" role="img">{"".join(marks)}</svg>'


def _lines(series: Mapping[str, tuple[Sequence[float], Sequence[float]]], below: str, left: str, order: Sequence[str]) -> str:
    """Lines from 0 to 1, with a legend; colours are the same in all pictures of a page."""
    width, height, foot = 300, 170, 34
    longest = max(max(x) for x, _ in series.values()) or 1.0
    marks = [
        f'<line class="axis" x1="34" x2="{width}" y1="{height * (1 - y) + 6:.1f}" y2="{height * (1 - y) + 6:.1f}"/>' for y in (0, 0.5, 1)
    ]
    marks += [f'<text class="soft" x="28" y="{height * (1 - y) + 10:.1f}" text-anchor="end">{100 * y:.0f}</text>' for y in (0, 0.5, 1)]
    for number, (name, (xs, ys)) in enumerate(series.items()):
        colour = COLOURS[list(order).index(name) % len(COLOURS)]
        dots = " ".join(f"{34 + x / longest * (width - 34):.1f},{height * (1 - y) + 6:.1f}" for x, y in zip(xs, ys, strict=True))
        marks.append(f'<polyline points="{dots}" style="fill:none;stroke:{colour};stroke-width:2"/>')
        marks.append(f'<text x="{width + 10}" y="{18 + 16 * number}" style="fill:{colour}">{escape(name)}</text>')
    marks.append(f'<text class="soft" x="{width}" y="{height + foot - 8}" text-anchor="end">{escape(below)}, up to {longest:g}</text>')
    marks.append(f'<text class="soft" x="34" y="{height + foot - 8}">{escape(left)}, %</text>')
    return f'<svg viewBox="0 0 {width + 130} {height + foot}" width="{width + 130}" role="img">{"".join(marks)}</svg>'
