"""What `turnwise cluster plan` shows: a table of simulated splits, the same as JSON, and a picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from turnwise.cluster.planning import Plan, Question, describe, make_plan, settings
from turnwise.cluster.simulate import Result
from turnwise.util.console import Console
from turnwise.util.errors import MissingExtra, TurnwiseError
from turnwise.util.files import write_atomically
from turnwise.util.terminal import say

WIDE = 120  # columns of a terminal that shows everything
SIMULATED = "Simulated with service times measured on one H200; nothing was run on these GPUs. Assumptions: docs/cluster-planning.md"


def plan_command(question: Question, picture: str | None = None, as_json: bool = False) -> None:
    """Make a plan, with progress on stderr, and show it."""
    path = Path(picture) if picture is not None else None
    if path is not None:
        check_picture(path)
    console = Console(stderr=True)
    with console.status("simulating") as status:
        plan = make_plan(question, lambda what: status.update(f"simulating {what}"))
    if as_json:
        say(json.dumps(as_data(plan), indent=1))
    else:
        console = Console(wide=140)
        console.print(table(plan, console.width))
        say(summary(plan))
    if path is not None:
        say(f"wrote {draw(plan, path)}", err=True)


def as_data(plan: Plan) -> dict[str, Any]:
    """The plan as plain values."""
    question = asdict(plan.question)
    rows = [row(result) | {"settings": settings(result), "best": result is plan.best} for result in plan.results]
    return {"simulated": True, "question": question, "parameters": plan.shape.parameters, "splits": rows}


def row(result: Result) -> dict[str, Any]:
    """One split as plain values."""
    layout = result.layout
    numbers = {
        "trajectories_per_s": result.trajectories_per_s,
        "iterations_per_h": result.iterations_per_h,
        "learner_idle": result.learner_idle,
        "engine_idle": result.engine_idle,
        "trajectories_per_engine": result.lanes,
        "dropped": result.dropped,
    }
    return (
        {"learners": layout.learners, "engines": layout.engines, "tensor_parallel": layout.tensor_parallel, "colocated": layout.colocated}
        | {"staleness": result.staleness, "groups_per_engine": layout.capacity}
        | {name: round(value, 4) for name, value in numbers.items()}
        | {"ages": {str(age): round(share, 4) for age, share in result.ages.items()}, "failures": result.failures}
        | {"seconds": {part: round(value, 2) for part, value in result.parts.items()}}
    )


def table(plan: Plan, width: int = 140) -> Table:
    """One row per split; the best one has a star. A narrow terminal gets no parts of an iteration and no ages: --json has them."""
    work, gpus = plan.question.work, plan.question.gpus
    shown = Table(
        title=f"{plan.shape.name} on {gpus} GPU{'' if gpus == 1 else 's'}: {work.groups} groups × {work.group_size}, up to {work.turns} "
        f"turns, {work.context} context",
        title_justify="left",
        box=None,
    )
    names = ("learners", "engines", "GPUs\neach", "trajectories\nper second", "iterations\nper hour", "learners\nidle", "engines\nidle")
    more = ("seconds: wait +\npack + learn + send", "age of\ngroups") if width >= WIDE else ()
    for name in ("", *names, *more):
        shown.add_column(name, justify="right" if name in names else "left", no_wrap=True)
    for result in plan.results:
        parts = " + ".join(f"{result.parts[part]:.1f}" for part in ("wait", "pack", "learn", "transfer"))
        shown.add_row(
            "*" if result is plan.best else "",
            f"{result.layout.learners}",
            f"{result.layout.engines}" + (" colocated" if result.layout.colocated else ""),
            f"{result.layout.tensor_parallel}",
            f"{result.trajectories_per_s:.2f}",
            f"{result.iterations_per_h:.1f}",
            f"{result.learner_idle:.0%}",
            f"{result.engine_idle:.0%}",
            *((parts, ages(result)) if more else ()),
        )
    return shown


def ages(result: Result) -> str:
    """How old the groups were that were learned from, and how many were dropped."""
    known = ", ".join(f"{age}: {share:.0%}" for age, share in result.ages.items())
    return known + (f"; {result.dropped:.1%} dropped" if result.dropped else "")


def summary(plan: Plan) -> str:
    """The best split in one sentence, and what kind of numbers these are."""
    best, gpus = plan.best, plan.question.gpus
    groups = f"{best.layout.capacity} group{'' if best.layout.capacity == 1 else 's'}"
    said = [
        f"Best: {describe(best.layout)}: {best.trajectories_per_s:.2f} trajectories/s, {best.iterations_per_h:.1f} iterations/h. "
        f"An engine runs up to {groups} at once."
    ]
    if left := gpus - best.layout.gpus:
        said.append(f"{left} of {gpus} GPUs would have nothing to do: no further engine of {best.layout.tensor_parallel} GPUs fits.")
    given = " ".join(f"{name}={value}" for name, value in settings(best).items())
    said.append(f"In a run: turnwise train RECIPE {given}" if given else "In a run: leave out the [cluster] section.")
    if best.layout.tensor_parallel > 1:
        said.append(
            "Engines on several GPUs need vLLM, and are simulated with the speed of the native engine: compare --tensor-parallel 1."
        )
    return "\n" + "\n".join([*said, f"{SIMULATED}."])


def check_picture(path: Path) -> None:
    """Before anything is simulated: whether the picture can be drawn."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise TurnwiseError(f"--picture {path}: give a name that ends in .png, .svg or .pdf")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("drawing a plan", "plots") from None


def draw(plan: Plan, path: Path) -> Path:
    """Throughput, idle shares and ages by the number of learners."""
    from matplotlib.figure import Figure

    apart = [result for result in plan.results if not result.layout.colocated]
    together = [result for result in plan.results if result.layout.colocated]
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    speed, idle, age = figure.subplots(1, 3)
    learners = [result.layout.learners for result in apart]
    speed.plot(
        learners,
        [result.trajectories_per_s for result in apart],
        "o-",
        color="#0072B2",
        label=f"apart, staleness {plan.question.staleness}",
    )
    for result in together:
        speed.axhline(result.trajectories_per_s, color="#555555", linestyle="--", label="colocated, staleness 0")
    speed.plot([plan.best.layout.learners], [plan.best.trajectories_per_s], "*", color="#D55E00", markersize=14, label="best")
    speed.set(title="trajectories per second", ylim=(0, None))
    speed.legend(frameon=False, fontsize=8)
    idle.plot(learners, [100 * result.learner_idle for result in apart], "o-", color="#D55E00", label="learners")
    idle.plot(learners, [100 * result.engine_idle for result in apart], "s-", color="#009E73", label="engines")
    idle.set(title="idle (%)", ylim=(0, 100))
    idle.legend(frameon=False, fontsize=8)
    below = [0.0] * len(apart)
    for value in sorted({value for result in apart for value in result.ages}):
        shares = [100 * result.ages.get(value, 0.0) for result in apart]
        age.bar([str(number) for number in learners], shares, bottom=below, label=f"{value}")
        below = [low + share for low, share in zip(below, shares, strict=True)]
    age.set(title="age of the groups learned from (%)", ylim=(0, 100))
    if apart:
        age.legend(fontsize=8, title="updates", loc="lower right")
    for axes in (speed, idle, age):
        axes.set_xlabel("learners")
    figure.suptitle(f"{plan.shape.name} on {plan.question.gpus} GPUs (simulated)", fontsize=10)
    return write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=120))
