"""The lab's pictures: credit by group size, and learning curves, with a panel for each problem.

A picture is made from the results alone, so it can be drawn again from the JSON file. No global state of matplotlib is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.util.errors import MissingExtra
from turnwise.util.files import write_atomically

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#7B3FE4", "#6B4423", "#7F7F7F")
STYLES = ("-", "--", ":", "-.")  # each for as many lines as there are colours
BANDS = 8  # lines; the bands of more would hide each other
BOLD = ("grpo", "gigpo")  # what the others are looked at next to

Curve = tuple[list[float], ...]  # mean, low and high at each place of the horizontal axis; None if there is no interval


def draw_all(result: dict[str, Any], folder: Path) -> list[Path]:
    """Every picture that the results have something for."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("drawing the lab's pictures", "plots") from None
    files = []
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figures = {"credit": credit_picture(result)} | ({"learning": learning_picture(result)} if result["learning"] else {})
        for name, figure in figures.items():
            save = partial(figure.savefig, format="png", dpi=100, metadata={"Software": None})  # the same results give the same file
            files.append(write_atomically(folder / f"{name}.png", save))
    return files


def credit_picture(result: dict[str, Any]) -> Any:
    """Correlation with the truth by group size, a curve for each line."""
    sizes = result["settings"]["group_sizes"]
    panels = {
        problem: {
            label: tuple([by_size[str(size)]["correlation"][end] for size in sizes] for end in ("mean", "low", "high"))
            for label, by_size in lines.items()
            if label != "oracle"
        }
        for problem, lines in result["credit"].items()
    }
    title = "Correlation of credit with the true advantage, by group size (same number of trajectories)"
    return _picture(title, "group size, logarithmic", [str(size) for size in sizes], panels)


def learning_picture(result: dict[str, Any]) -> Any:
    """Learning curves, one for each line."""
    seeds, learned = result["settings"]["training_seeds"], result["learning"]
    panels = {
        problem: {label: (line["curve"], line["low"], line["high"]) for label, line in readings["lines"].items()}
        for problem, readings in learned.items()
    }
    title = f"Training with each credit: exact expected return, 0 = first policy, 1 = best possible (mean of {seeds} seeds)"
    return _picture(title, "iteration", next(iter(learned.values()))["iterations"], panels)


def _picture(title: str, along: str, places: Sequence[Any], panels: Mapping[str, Mapping[str, Curve]]) -> Any:
    from matplotlib.figure import Figure

    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(3.3 * across + 0.4, 2.7 * down + 1.6), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for axes, (problem, lines) in zip(grid, panels.items(), strict=False):
        for number, (label, (mean, low, high)) in enumerate(lines.items()):
            colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
            axes.plot(places, mean, style, color=colour, linewidth=2.4 if label in BOLD else 1.2, label=label)
            if len(lines) <= BANDS and None not in low:
                axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.set_title(problem, fontsize=10)
        axes.set_xlabel(along)
        axes.grid(alpha=0.25, linewidth=0.5)
    for axes in grid[len(panels) :]:
        axes.axis("off")
    figure.suptitle(title, fontsize=11)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure
