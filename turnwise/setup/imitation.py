"""The length of a warm start: a fixed number of steps, until the model wins often enough, or with extensions until it is good enough.

A model that hardly ever wins has nothing to reinforce, and some seeds learn to copy a name from their prompt much later than others. So a
recipe may ask for a measurement: `sft.until` ends the imitation early, `sft.at_least` extends it. Both play training tasks, always the
same ones with the same seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from turnwise.collect.collector import Start
from turnwise.data.rollouts import Trajectory
from turnwise.learn.sections import Sft
from turnwise.learn.settings import OptimiserSettings
from turnwise.learn.sft import SftSettings
from turnwise.methods.planning import Places
from turnwise.setup.build import settings_from
from turnwise.util.seeds import derive

if TYPE_CHECKING:
    from turnwise.setup.system import System

MORE_ROUNDS = 4  # times that a warm start is extended by half of its steps


def imitate(system: System, own: Sft, examples: Sequence[Trajectory]) -> dict[str, float]:
    """Learn from the examples for as long as the recipe asks. Metrics: those of the imitation, and what was measured last."""
    learner = system.config.learner
    optimiser = settings_from(own, OptimiserSettings, weight_decay=learner.weight_decay, moments=learner.moments)
    settings = settings_from(own, SftSettings, optimiser=optimiser, until=own.until or 1.0)
    order = derive(system.config.seed, "warm start order")
    measure = _measure(system, own)
    metrics = system.teach(examples, settings, order, measure if own.until is not None else None)
    if own.at_least is not None:
        metrics = _go_on(system, own, examples, settings, order, measure, metrics)
    wanted, won = max(own.until or 0.0, own.at_least or 0.0), metrics.get("success", 0.0)
    if won < wanted and not system.cancelled():
        system.say(
            f"warning: the warm start ended after {metrics['steps']:.0f} steps at {won:.0%} of {own.look_tasks} training tasks, below the "
            f"{wanted:.0%} that the recipe asks for. Raise sft.steps (or sft.epochs), or look at sft.lr and sft.tasks"
        )
    return metrics


def _go_on(
    system: System,
    own: Sft,
    examples: Sequence[Trajectory],
    settings: SftSettings,
    order: int,
    measure: Callable[[], float],
    metrics: dict[str, float],
) -> dict[str, float]:
    """While the model wins less than `at_least`: half as many steps again, a few times at most."""
    half = max(1, int(metrics["steps"]) // 2)
    for number in range(MORE_ROUNDS + 1):
        if system.cancelled():
            break
        metrics = metrics | {"success": measure()}
        if metrics["success"] >= (own.at_least or 0.0) or number == MORE_ROUNDS:
            break
        system.say(
            f"the warm start wins {metrics['success']:.0%} of {own.look_tasks} training tasks, less than sft.at_least={own.at_least:g}: "
            f"{half} more steps"
        )
        more = system.teach(examples, replace(settings, steps=half), derive(order, number))
        metrics = metrics | {"steps": metrics["steps"] + more["steps"], "loss_last": more["loss_last"]}
    return metrics


def _measure(system: System, own: Sft) -> Callable[[], float]:
    """The share of `look_tasks` training tasks that the model, as it is, wins. If a first part is far below what is wanted, it stands for
    the whole, so that the many measurements before a model can play cost little."""
    starts = Places(system.tasks, derive(system.config.seed, "look"), 1).groups(own.look_tasks)
    first, wanted = starts[: -(-len(starts) // 4)], own.until or own.at_least or 0.0

    def won(some: Sequence[Start]) -> int:
        return sum(trajectory.success for trajectory in system.collector().run(some))

    def measure() -> float:
        system.engine.refresh()
        part = won(first)
        return part / len(first) if part < wanted * len(first) / 2 else (part + won(starts[len(first) :])) / len(starts)

    return measure
