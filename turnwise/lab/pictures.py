"""The lab's pictures, PNG and SVG: credit by group size, learning curves, and what aliasing and missing recurrence cost.

A picture is made from the results alone, so it can be drawn again from the JSON file. No global state of matplotlib is touched.
"""

from __future__ import annotations

from collections.abc import Callable
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
    files = _save(folder, "credit", lambda: credit_picture(result))
    if result["learning"]:
        files += _save(folder, "learning", lambda: learning_picture(result))
    if result["aliasing"]:
        files += _save(folder, "aliasing", lambda: aliasing_picture(result))
    files += _save(folder, "skill", lambda: skill_picture(result))
    return files + _save(folder, "recurrence", lambda: recurrence_picture(result))


def _save(folder: Path, name: str, make: Callable[[], Any]) -> list[Path]:
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("drawing the lab's pictures", "plots") from None
    files = []
    # a fixed salt and no date: the same results give the same file
    with matplotlib.rc_context({"svg.hashsalt": "turnwise", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = make()
        figure.draw_without_rendering()  # lay out once, not again for each kind of file
        figure.set_layout_engine("none")
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):

            def write(file: Any, kind: str = kind, metadata: dict[str, None] = metadata) -> None:
                figure.savefig(file, format=kind, dpi=100, metadata=metadata)

            files.append(write_atomically(folder / f"{name}.{kind}", write))
    return files


def style_of(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """How each line is drawn: known ones in their colour, near-duplicates of GRPO in grey, a user's own in a spare colour."""
    labels = [line["label"] for line in result["lines"]]
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


def _panels(names: list[str], title: str, height: float = 2.7) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    across = min(len(names), 3)
    down = -(-len(names) // across)
    figure = Figure(figsize=(3.3 * across + 0.4, height * down + 1.1), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for axes, name in zip(grid, names, strict=False):
        axes.set_title(name, fontsize=10)
        axes.grid(alpha=0.25, linewidth=0.5)
    for axes in grid[len(names) :]:
        axes.axis("off")
    figure.suptitle(title, fontsize=11)
    return figure, grid


def _legend(figure: Any, grid: list[Any], panels: int, greys: list[str]) -> None:
    """In the space of an unused panel, if there is one, otherwise below."""
    handles, names = grid[0].get_legend_handles_labels()
    if greys:
        handles.append(grid[0].plot([], [], color=GREY)[0])
        names.append(f"{len(greys)} others, see lab.json")
    if panels < len(grid):
        grid[panels].legend(handles, names, loc="upper left", ncols=1, frameon=False, fontsize=8, handlelength=3)
    else:
        figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8)


def _greys(styles: dict[str, dict[str, Any]]) -> list[str]:
    return [label for label, style in styles.items() if style["color"] == GREY]


def _band(axes: Any, x: list[Any], low: list[Any], high: list[Any], style: dict[str, Any]) -> None:
    if style["color"] != GREY and None not in low and None not in high:
        axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)


def credit_picture(result: dict[str, Any]) -> Any:
    """Correlation with the truth by group size, a panel for each problem."""
    sizes, styles = result["settings"]["group_sizes"], style_of(result)
    title = "Correlation of credit with the true advantage, by group size (same number of trajectories)"
    figure, grid = _panels(list(result["credit"]), title)
    for axes, lines in zip(grid, result["credit"].values(), strict=False):
        for label, by_size in lines.items():
            if label == "oracle":
                continue
            readings = [by_size[str(size)]["correlation"] for size in sizes]
            axes.plot(sizes, [one["mean"] for one in readings], marker="o", markersize=2.5, **styles[label])
            _band(axes, sizes, [one["low"] for one in readings], [one["high"] for one in readings], styles[label])
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.set_xlabel("group size")
    _legend(figure, grid, len(result["credit"]), _greys(styles))
    return figure


def learning_picture(result: dict[str, Any]) -> Any:
    """Learning curves, a panel for each problem."""
    styles = style_of(result)
    seeds = result["settings"]["training_seeds"]
    title = f"Training with each credit: exact expected return, 0 = first policy, 1 = best possible (mean of {seeds} seeds, 95 % band)"
    figure, grid = _panels(list(result["learning"]), title)
    for axes, readings in zip(grid, result["learning"].values(), strict=False):
        for label, line in readings["lines"].items():
            axes.plot(readings["iterations"], line["curve"], **styles[label])
            if label in ("grpo", "gigpo") or label not in STYLES:
                _band(axes, readings["iterations"], line["low"], line["high"], styles[label])
        axes.set_xlabel("iteration")
    _legend(figure, grid, len(result["learning"]), _greys(styles))
    return figure


def aliasing_picture(result: dict[str, Any]) -> Any:
    """Correlation by how many states share an anchor."""
    title = f"When anchors merge different states: correlation with the true advantage, groups of {result['settings']['shown_size']}"
    figure, grid = _sweep_picture(result["aliasing"], "aliasing", "correlation", title, "states that share an anchor")
    for axes, lines in zip(grid, result["aliasing"].values(), strict=False):
        levels = [row["aliasing"] for row in next(iter(lines.values()))]
        axes.set_xscale("log", base=2)
        axes.set_xticks(levels, [str(level) for level in levels])
        axes.minorticks_off()
    return figure


def skill_picture(result: dict[str, Any]) -> Any:
    """Cosine with the exact gradient by the skill of the policy."""
    title = f"As the policy gets better: cosine with the exact gradient, groups of {result['settings']['shown_size']}"
    return _sweep_picture(result["skill"], "skill", "gradient_cosine", title, "skill of the policy")[0]


def _sweep_picture(found: dict[str, Any], knob: str, reading: str, title: str, axis: str) -> tuple[Any, list[Any]]:
    """A panel for each problem, a curve for each line."""
    figure, grid = _panels(list(found), title)
    for axes, lines in zip(grid, found.values(), strict=False):
        for label, rows in lines.items():
            colour, dash = STYLES[label]
            style = {"color": colour, "linestyle": dash, "linewidth": 1.6, "label": label}
            x, y = [row[knob] for row in rows], [row[reading] for row in rows]
            axes.plot(x, [one["mean"] for one in y], marker="o", markersize=2.5, **style)
            _band(axes, x, [one["low"] for one in y], [one["high"] for one in y], style)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.set_xlabel(axis)
    _legend(figure, grid, len(found), [])
    return figure, grid


def recurrence_picture(result: dict[str, Any]) -> Any:
    """GiGPO's gain over GRPO by the share of turns whose state no other turn of the group shares."""
    size = result["settings"]["shown_size"]
    names = {"correlation_gain": "gain in correlation", "gradient_cosine_gain": "gain in cosine with the exact gradient"}
    figure, grid = _panels(list(names.values()), f"GiGPO minus GRPO, by how often states repeat, groups of {size}", height=3.2)
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", *SPARE)
    for axes, reading in zip(grid, names, strict=False):
        for index, (problem, rows) in enumerate(result["recurrence"].items()):
            colour = colours[index % len(colours)]
            x, y = [row["singleton_share"] for row in rows], [row[reading]["mean"] for row in rows]
            spread = [0.0 if row[reading]["high"] is None else row[reading]["high"] - row[reading]["mean"] for row in rows]
            axes.errorbar(x, y, yerr=spread, marker="o", markersize=3, capsize=2, linewidth=1.4, color=colour, label=problem)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xlabel("share of turns alone in their anchor group")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure
