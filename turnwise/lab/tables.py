"""The lab's results in the terminal: two tables of means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from turnwise.util.console import Console

FULL_WIDTH = 100
HINT = (
    "Look at: where no state repeats, as in the tree, GiGPO and GRPO are equal. Options of a problem show more: recurrence=0.5 makes "
    "states rarer, aliasing=2 merges them, and --skill 0.6 measures a better policy."
)


def show(result: dict[str, Any], console: Console, files: list[Path], note: str) -> None:
    """Everything: credit, learning, a hint, files."""
    console.print(Group(credit_table(result), *([learning_table(result)] if result["learning"] else [])))
    console.print(Text(HINT))
    if note:
        console.print(Text.assemble(("No pictures:", "yellow"), f" {note}"))
    console.print("Files: " + ", ".join(map(str, files)), soft_wrap=True)


def credit_table(result: dict[str, Any]) -> Group:
    """Correlation with the true advantage at the shown group size, best first."""
    size = result["settings"]["shown_size"]
    cells = {
        label: {problem: lines[label][str(size)]["correlation"]["mean"] or 0.0 for problem, lines in result["credit"].items()}
        for label in _labels(result)
    }
    return _table(result, f"Correlation of credit with the true advantage, groups of {size} (* best)", cells)


def learning_table(result: dict[str, Any]) -> Group:
    """Area under the learning curve."""
    cells = {
        label: {problem: readings["lines"][label]["area"]["mean"] for problem, readings in result["learning"].items()}
        for label in _labels(result)
    }
    return _table(result, "Training with it: mean of the learning curve; 0 is the first policy, 1 the best; * best", cells)


def _labels(result: dict[str, Any]) -> list[str]:
    return [line["label"] for line in result["lines"]]


def _table(result: dict[str, Any], title: str, cells: dict[str, dict[str, float]]) -> Group:
    """Lines × problems, sorted by the mean over problems; upper bounds are listed below and are not marked as best."""
    bound = {line["label"]: line["bound"] for line in result["lines"]}
    problems = list(result["problems"])
    average = {label: sum(row.values()) / len(row) for label, row in cells.items()}
    best = {problem: max((row[problem] for label, row in cells.items() if not bound[label]), default=None) for problem in problems}
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True)
    table.add_column("credit", no_wrap=True)
    for problem in problems:
        table.add_column(Text(problem), justify="right", overflow="fold")
    table.add_column("mean", justify="right")
    for label in sorted(cells, key=lambda name: (bound[name], -average[name], name)):
        row: list[Text] = [Text(label)]
        for problem in problems:
            value = cells[label][problem]
            is_best = not bound[label] and best[problem] is not None and round(value, 2) == round(best[problem] or 0.0, 2)
            row.append(Text(f"{value:.2f}{'*' if is_best else ' '}", style="bold" if is_best else ""))
        table.add_row(*row, Text(f"{average[label]:.2f}"), style="dim" if bound[label] else "")
    return Group(Text(title, style="bold"), table)  # a title inside the table would be folded to its width
