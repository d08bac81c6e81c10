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
SWEEPS = {  # knob: reading, name of the axis, title
    "aliasing": ("correlation", "states that share an anchor", "When anchors merge different states: correlation with the true advantage"),
    "skill": ("gradient_cosine", "skill of the policy", "As the policy gets better: cosine with the exact gradient"),
}


def draw_all(result: dict[str, Any], folder: Path) -> list[Path]:
    """Every picture that the results have something for."""
    files = _save(folder, "credit", lambda: credit_picture(result))
    if result["learning"]:
        files += _save(folder, "learning", lambda: learning_picture(result))
    if result["aliasing"]:
        files += _save(folder, "aliasing", lambda: sweep_picture(result, "aliasing"))
    files += _save(folder, "skill", lambda: sweep_picture(result, "skill"))
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
    """Correlation with the truth by group size, a panel for each problem."""
    sizes = result["settings"]["group_sizes"]
    panels = {
        problem: {label: (sizes, [by_size[str(size)]["correlation"] for size in sizes]) for label, by_size in lines.items()}
        for problem, lines in result["credit"].items()
    }
    for lines in panels.values():
        lines.pop("oracle", None)
    title = "Correlation of credit with the true advantage, by group size (same number of trajectories)"
    return _curves(panels, style_of([line["label"] for line in result["lines"]]), title, "group size", ticks=sizes)


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


def sweep_picture(result: dict[str, Any], knob: str) -> Any:
    """A reading by a knob: correlation by how many states share an anchor, or the cosine with the exact gradient by skill."""
    reading, axis, title = SWEEPS[knob]
    panels = {
        problem: {label: ([row[knob] for row in rows], [row[reading] for row in rows]) for label, rows in lines.items()}
        for problem, lines in result[knob].items()
    }
    labels, levels = list(next(iter(panels.values()))), next(iter(next(iter(panels.values())).values()))[0]
    title = f"{title}, groups of {result['settings']['shown_size']}"
    return _curves(panels, style_of(labels), title, axis, ticks=levels if knob == "aliasing" else None)


def _curves(panels: dict[str, Any], styles: dict[str, dict[str, Any]], title: str, axis: str, ticks: list[int] | None = None) -> Any:
    """A panel for each problem, a curve for each line; `ticks`, if there are any, on a logarithmic axis."""
    figure, grid = _panels(list(panels), title)
    for axes, lines in zip(grid, panels.values(), strict=False):
        for label, (x, readings) in lines.items():
            axes.plot(x, [one["mean"] for one in readings], marker="o", markersize=2.5, **styles[label])
            _band(axes, x, [one["low"] for one in readings], [one["high"] for one in readings], styles[label])
        if ticks is not None:
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.minorticks_off()
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.set_xlabel(axis)
    _legend(figure, grid, len(panels), styles)
    return figure


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
