"""A replay as text: two credits of the same turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from turnwise.util.console import Console
from turnwise.util.printable import counted, printable


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Everything that `turnwise.evaluation.replay.replay` found."""

    def say(text: str) -> None:
        console.print(Text(text), soft_wrap=True)

    say(f"Iteration {result['iteration']} of {result['run']}: {counted(result['turns'], 'turn')}.")
    for each in result["credits"]:
        say(f"  {each['name']}: mean |credit| {each['size']:.3f}, {each['zero_share']:.0%} of turns 0, {each['positive_share']:.0%} above")
    for pair in result["comparisons"]:
        say(f"\n{pair['other']} against {pair['one']}:")
        say(f"  correlation {_number(pair['pearson'])}, of ranks {_number(pair['spearman'])}")
        say(
            f"  the same sign on {pair['same_sign']:.1%} of turns, opposite on {pair['flipped']:.1%}; "
            f"credit from the first alone on {pair['only_one']:.1%}, from the second alone on {pair['only_other']:.1%}"
        )
        if pair["differ_most"]:
            console.print(_turns(pair))


def _turns(pair: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title="the turns that differ most, each credit in its own scale", title_justify="left")
    for name in ("task", "turn", "action", "solved", pair["one"], pair["other"]):
        table.add_column(Text(name))
    for row in pair["differ_most"]:
        cells = (
            printable(row["task"]),
            str(row["turn"]),
            " ".join(printable(row["action"]).split()),
            "yes" if row["success"] else "no",
            f"{row['one']:+.3f}",
            f"{row['other']:+.3f}",
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
