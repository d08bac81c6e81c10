"""The result of an evaluation as a table."""

from __future__ import annotations

from rich.table import Table

from turnwise.collect.panel import Evaluation, Share
from turnwise.util.console import Console


def show_evaluation(console: Console, result: Evaluation) -> None:
    """The result as a short table."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    if trials := result.settings.get("trials"):
        for each in trials:
            table.add_row(f"success within {each['trial']}", str(Share(round(each["success"] * each["n"]), each["n"])))
        table.add_row("", "only the first row is one attempt per task; later rows use the environment's verdict on earlier attempts")
    else:
        table.add_row("success", str(result.success))
    for kind, share in result.by_type.items():
        table.add_row(f"  {kind}", str(share))
    if result.mean_of_types is not None:
        table.add_row("  mean of these", f"{100 * result.mean_of_types:.1f} %, each counted once")
    for name, mean in result.measures.items():
        table.add_row(name, f"{mean:.3f} on average")
    table.add_row("turns", f"{result.turns:.1f} on average")
    table.add_row("reward", f"{result.reward:.3f} on average")
    table.add_row("invalid turns", f"{100 * result.invalid:.1f} %")
    table.add_row("stopped by", ", ".join(f"{stop} {count}" for stop, count in result.stops.items()))
    again = f", each {result.repeats} times" if result.repeats > 1 else ""
    table.add_row("panel", f"{result.panel_size} tasks{again}, hash {result.panel_hash}")
    console.print(table)
