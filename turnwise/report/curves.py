"""The picture of a comparison: learning curves, one line a group, with the band over seeds."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.errors import MissingExtra, TurnwiseError
from turnwise.files import write_atomically

if TYPE_CHECKING:
    from turnwise.report.comparison import Comparison

KINDS = ("png", "svg", "pdf")
COLOURS = ("#1b6ca8", "#c8553d", "#588b3b", "#8a5aa8", "#b8860b", "#4a8f8f", "#a83279", "#666666")
STYLES = ("-", "--", ":", "-.")  # past the last colour, and for eyes that see few of them


def draw(comparison: Comparison, path: Path) -> Path:
    """Write the picture; its kind is the file name's ending."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in KINDS:
        raise TurnwiseError(f"{path}: a picture's name ends in {', '.join(f'.{one}' for one in KINDS)}")
    groups = [group for group in comparison.groups if len(group.curve.iterations) > 1]
    if not groups:
        raise TurnwiseError("there is no curve to draw: no group was evaluated at two iterations or more")
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise MissingExtra("drawing the curves", "plots") from None
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, group in enumerate(groups):
        colour, style, curve = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)], group.curve
        n = len(group.seeds)
        name = f"{comparison.named_by[0]}={group.label}" if len(comparison.named_by) == 1 else group.label
        label = f"{name} ({n} seed{'s' if n > 1 else ''})"
        axes.plot(curve.iterations, curve.success, style, color=colour, marker="o", ms=3.5, lw=1.8, label=label)
        if n > 1:
            axes.fill_between(curve.iterations, curve.low, curve.high, color=colour, alpha=0.15, lw=0)
    if comparison.target is not None:
        axes.axhline(comparison.target, color="#888", lw=1, ls=":")
    axes.set(xlabel="iteration", ylabel="success on the panel", ylim=(-0.02, 1.02), title="Mean over seeds, band: 95 % (Student's t)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    buffer = BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"CreationDate": None} if kind == "pdf" else {}
    with matplotlib.rc_context({"svg.hashsalt": "turnwise"}):  # the same comparison gives the same bytes
        figure.savefig(buffer, format=kind, dpi=130, metadata=metadata)
    return write_atomically(path, lambda file: file.write(buffer.getvalue()))
