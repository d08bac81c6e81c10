"""The picture of a run: success over iterations, in training and on the held-out panel."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from turnwise.util.errors import MissingExtra
from turnwise.util.files import write_atomically


def draw_curve(metrics: Sequence[dict[str, Any]], path: Path, title: str) -> Path:
    """Write a PNG. Needs matplotlib (the extra `plots`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing the curve", "plots") from None
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    train = [(line["iteration"], line["collect/success"]) for line in metrics if "collect/success" in line]
    held = [(line["iteration"], line["eval/success"], line["eval/low"], line["eval/high"]) for line in metrics if "eval/success" in line]
    if train:
        axes.plot(*zip(*train, strict=True), color="#8aa", lw=1.5, label="training tasks, sampled")
    if held:
        x, y, low, high = zip(*held, strict=True)
        axes.errorbar(x, y, [[a - b for a, b in zip(y, low, strict=True)], [b - a for a, b in zip(y, high, strict=True)]],
                      color="#c33", marker="o", capsize=3, label="held-out panel, 95 % interval")  # fmt: skip
    axes.set(xlabel="iteration", ylabel="success rate", ylim=(-0.02, 1.02), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return write_atomically(path, lambda file: file.write(buffer.getvalue()))
