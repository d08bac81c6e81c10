"""A replay as text: two credits of the same turns, and the updates that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from turnwise.util.console import Console
from turnwise.util.printable import counted, printable

SHOWN = ("loss", "grad_norm", "kl_old_k3", "kl_ref_k3", "entropy", "steps", "kl_after", "weights_moved")


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
    if "updates" in result:
        console.print(_updates(result))
        for pair in result["update_comparisons"]:
            say(
                f"{pair['other']} against {pair['one']}: cosine of the first gradients {_number(pair['gradient_cosine'])}, "
                f"of the changes of weights {_number(pair['weights_cosine'])}"
            )
        check = result["reproduces"]
        how = "exactly" if check["exact"] else f"up to a relative difference of {check['largest_gap']:.1e} ({check['at']})"
        say(f"As trained, the update gives the {check['metrics']} numbers that the run logged, {how}.")


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


def _updates(result: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title="\nthe update from the same weights on the same tokens", title_justify="left")
    table.add_column("")
    for each in result["updates"]:
        table.add_column(Text(each["name"]))
    for name in SHOWN:
        if any(name in each for each in result["updates"]):
            table.add_row(name, *(_number(each.get(name)) for each in result["updates"]))
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
