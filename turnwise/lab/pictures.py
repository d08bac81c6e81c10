"""The lab's pictures: credit by group size, and learning curves.

A picture is made from the results alone, so it can be drawn again from the JSON file. No global state of matplotlib is touched.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from turnwise.util.errors import MissingExtra
from turnwise.util.files import write_atomically

STYLES: dict[str, tuple[str, str]] = {
    "grpo": ("#D55E00", "-"),
    "gigpo": ("#0072B2", "-"),
    "gigpo:episode_weight=0": ("#56B4E9", "-"),
    "gigpo:gamma=1": ("#0072B2", "--"),
    "hgpo": ("#009E73", "-"),
    "graph_gpo": ("#CC79A7", "-"),
    "gae": ("#B8860B", "-"),
    "gae:critic=exact": ("#B8860B", ":"),
    "reinforce_pp:returns=to_go": ("#D55E00", "--"),
    "oracle": ("#000000", ":"),
}
QUIET = {
    *("dr_grpo", "rloo", "loop", "reinforce_pp", "reinforce_pp_baseline", "bi_level_gae"),
    *("gigpo:omega=0", "gigpo:weighting=step", "gigpo:once=true", "gigpo:norm=none"),
}
SPARE = ("#7B3FE4", "#E11D74", "#6B4423", "#2F4F4F", "#8B8000", "#C71585")
GREY = "#BBBBBB"


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


def style_of(labels: list[str]) -> dict[str, dict[str, Any]]:
    """How each line is drawn: known ones in their colour, near-duplicates of GRPO in grey, a user's own in a spare colour."""
    few = len(labels) <= 8
    spare = iter(SPARE * (1 + len(labels) // len(SPARE)))
    styles: dict[str, dict[str, Any]] = {}
    for label in labels:
        if label in STYLES:
            colour, dash = STYLES[label]
            styles[label] = {"color": colour, "linestyle": dash, "linewidth": 1.6, "zorder": 3, "label": label}
        elif label in QUIET and not few:
            styles[label] = {"color": GREY, "linestyle": "-", "linewidth": 1.0, "zorder": 1, "label": "_"}
        else:
            styles[label] = {"color": next(spare), "linestyle": "-", "linewidth": 2.0, "zorder": 4, "label": label}
    return styles


def _panels(names: list[str], title: str) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    across = min(len(names), 3)
    down = -(-len(names) // across)
    figure = Figure(figsize=(3.3 * across + 0.4, 2.7 * down + 1.1), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for axes, name in zip(grid, names, strict=False):
        axes.set_title(name, fontsize=10)
        axes.grid(alpha=0.25, linewidth=0.5)
    for axes in grid[len(names) :]:
        axes.axis("off")
    figure.suptitle(title, fontsize=11)
    return figure, grid


def _legend(figure: Any, grid: list[Any], panels: int, styles: dict[str, dict[str, Any]]) -> None:
    """In the space of an unused panel, if there is one, otherwise below."""
    handles, names = grid[0].get_legend_handles_labels()
    if greys := sum(style["color"] == GREY for style in styles.values()):
        handles.append(grid[0].plot([], [], color=GREY)[0])
        names.append(f"{greys} others, see lab.json")
    if panels < len(grid):
        grid[panels].legend(handles, names, loc="upper left", ncols=1, frameon=False, fontsize=8, handlelength=3)
    else:
        figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8)


def _band(axes: Any, x: list[Any], low: list[Any], high: list[Any], style: dict[str, Any]) -> None:
    if style["color"] != GREY and None not in low and None not in high:
        axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)


def credit_picture(result: dict[str, Any]) -> Any:
    """Correlation with the truth by group size, a panel for each problem, a curve for each line."""
    sizes, styles = result["settings"]["group_sizes"], style_of([line["label"] for line in result["lines"]])
    title = "Correlation of credit with the true advantage, by group size (same number of trajectories)"
    figure, grid = _panels(list(result["credit"]), title)
    for axes, lines in zip(grid, result["credit"].values(), strict=False):
        for label, by_size in lines.items():
            if label != "oracle":
                readings = [by_size[str(size)]["correlation"] for size in sizes]
                axes.plot(sizes, [one["mean"] for one in readings], marker="o", markersize=2.5, **styles[label])
                _band(axes, sizes, [one["low"] for one in readings], [one["high"] for one in readings], styles[label])
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.set_xlabel("group size")
    _legend(figure, grid, len(result["credit"]), styles)
    return figure


def learning_picture(result: dict[str, Any]) -> Any:
    """Learning curves, a panel for each problem."""
    styles = style_of([line["label"] for line in result["lines"]])
    seeds = result["settings"]["training_seeds"]
    title = f"Training with each credit: exact expected return, 0 = first policy, 1 = best possible (mean of {seeds} seeds, 95 % band)"
    figure, grid = _panels(list(result["learning"]), title)
    for axes, readings in zip(grid, result["learning"].values(), strict=False):
        for label, line in readings["lines"].items():
            axes.plot(readings["iterations"], line["curve"], **styles[label])
            if label in ("grpo", "gigpo") or label not in STYLES:
                _band(axes, readings["iterations"], line["low"], line["high"], styles[label])
        axes.set_xlabel("iteration")
    _legend(figure, grid, len(result["learning"]), styles)
    return figure
