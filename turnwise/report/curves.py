"""Pictures of learning curves: those of one run, and those of a comparison with the band over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.util.errors import MissingExtra, TurnwiseError
from turnwise.util.files import write_atomically

if TYPE_CHECKING:
    from turnwise.report.comparison import Comparison

KINDS = ("png", "svg", "pdf")
COLOURS = ("#1b6ca8", "#c8553d", "#588b3b", "#8a5aa8", "#b8860b", "#4a8f8f", "#a83279", "#666666")
STYLES = ("-", "--", ":", "-.")  # beyond the last colour, and for readers who see few colours


def draw(comparison: Comparison, path: Path) -> Path:
    """Write the picture; its kind is the file name's ending."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in KINDS:
        raise TurnwiseError(f"{path}: a picture's name ends in {', '.join(f'.{one}' for one in KINDS)}")
    groups = [group for group in comparison.groups if len(group.curve.iterations) > 1]
    if not groups:
        raise TurnwiseError("there is no curve to draw: no group was evaluated at two iterations or more")
    figure, axes = _empty("success on the panel", "Mean over seeds, band: 95 % (Student's t)")
    import matplotlib
    from matplotlib.ticker import MaxNLocator

    for number, group in enumerate(groups):
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        curve, n = group.curve, len(group.seeds)
        name = f"{comparison.named_by[0]}={group.label}" if len(comparison.named_by) == 1 else group.label
        label = f"{name} ({n} seed{'s' if n > 1 else ''})"
        axes.plot(curve.iterations, curve.success, style, color=colour, marker="o", ms=3.5, lw=1.8, label=label)
        if n > 1:  # if seeds tie and no run has its own interval, the band has a gap
            axes.fill_between(curve.iterations, curve.low, curve.high, color=colour, alpha=0.15, lw=0)
    if comparison.target is not None:
        axes.axhline(comparison.target, color="#888", lw=1, ls=":")
    axes.legend(loc="lower right", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    metadata = {"Date": None} if kind == "svg" else {"CreationDate": None} if kind == "pdf" else {}
    with matplotlib.rc_context({"svg.hashsalt": "turnwise"}):  # the same comparison gives the same bytes
        return write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=130, metadata=metadata))


def draw_curve(metrics: Sequence[dict[str, Any]], path: Path, title: str) -> Path:
    """Write a PNG. Needs matplotlib (the extra `plots`)."""
    figure, axes = _empty("success rate", title)
    train = [(line["iteration"], line["collect/success"]) for line in metrics if "collect/success" in line]
    held = [(line["iteration"], line["eval/success"], line["eval/low"], line["eval/high"]) for line in metrics if "eval/success" in line]
    if train:
        axes.plot(*zip(*train, strict=True), color="#8aa", lw=1.5, label="training tasks, sampled")
    if held:
        x, y, low, high = zip(*held, strict=True)
        axes.errorbar(x, y, [[a - b for a, b in zip(y, low, strict=True)], [b - a for a, b in zip(y, high, strict=True)]],
                      color="#c33", marker="o", capsize=3, label="held-out panel, 95 % interval")  # fmt: skip
    axes.legend(loc="lower right")
    return write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=120))


def _empty(shown: str, title: str) -> tuple[Any, Any]:
    """A figure and its axes, for shares of success over iterations."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing the curves", "plots") from None
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="iteration", ylabel=shown, ylim=(-0.02, 1.02), title=title)
    axes.grid(alpha=0.3)
    return figure, axes
