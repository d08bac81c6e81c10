"""The measurements: every line's credit against the truth, for each problem and group size.

A batch holds the same number of trajectories at every group size: 128 are 64 groups of 2 or 4 groups of 32. So the question is how to
spend a budget, not how much more data helps. All lines see the same batches, and problems that differ in their anchors alone have the same
trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from turnwise.credit import diagnose
from turnwise.data.rollouts import Floats
from turnwise.lab.lines import Line, estimated_values
from turnwise.lab.metrics import Truth, interval, measure, truth_of
from turnwise.lab.problems import Problem
from turnwise.lab.sample import Batch, draw, sample, stack
from turnwise.lab.signals import View
from turnwise.lab.values import action_values, advantages, occupancy, skilled_policy, state_values
from turnwise.util.errors import TurnwiseError


@dataclass(frozen=True)
class Case:
    """A problem with the policy whose credit is measured and the truth about it."""

    label: str
    problem: Problem
    policy: Floats
    advantage: Floats
    value: Floats


def make_case(label: str, problem: Problem, skill: float) -> Case:
    policy = skilled_policy(problem, skill)
    advantage = advantages(problem, policy)
    if not advantage[occupancy(problem, policy) > 0].any():
        raise TurnwiseError(f"problem {label!r}: no action matters (every true advantage is 0). Give it a longer horizon or a reward")
    return Case(label, problem, policy, advantage, state_values(action_values(problem, policy), policy))


def stream(seed: int, *names: object) -> np.random.Generator:
    """Random numbers that depend on the seed and on what they are for, and on nothing else."""
    return np.random.default_rng([seed, *(crc32(str(name).encode()) for name in names)])


def play(case: Case, size: int, budget: int, seeds: int, seed: int, use: str) -> Batch:
    """One batch per seed. The same random numbers for every problem of the same name, whatever its anchors."""
    groups = max(1, budget // size)
    draws = [draw(case.problem, groups, size, stream(seed, case.problem.name, use, size, k)) for k in range(seeds)]
    return sample(case.problem, np.broadcast_to(case.policy, (seeds, *case.policy.shape)), stack(draws))


def views_of(case: Case, size: int, budget: int, seeds: int, seed: int) -> tuple[Truth, list[View]]:
    """The batches of one problem and group size, with both critics' values, ready for every line."""
    batch = play(case, size, budget, seeds, seed, "measured")
    independent = play(case, size, budget, seeds, seed, "critic")
    truth = truth_of(case.problem, case.policy, batch, seeds, case.advantage)
    values = estimated_values(batch, independent, case.problem.states, seeds)
    return truth, view_each(case, batch, values, partial(stream, seed, case.problem.name, "fresh", size))


def view_each(case: Case, batch: Batch, estimated: Floats, chance: Callable[[int], np.random.Generator]) -> list[View]:
    """Each run of a batch as the lines see it; `estimated` are a critic's values, `chance` draws the fresh attempts of a run."""
    truth = case.advantage[batch.t, batch.state, batch.action]
    values = {"exact": case.value[batch.t, batch.state], "estimated": estimated}
    return [View(case.problem, case.policy, batch, run, truth, values, partial(chance, run)) for run in range(len(batch.offsets) - 1)]


def credit_of(line: Line, views: Sequence[View]) -> Floats:
    """A line's credit for all runs, one after another."""
    return np.concatenate([np.asarray(line.credit(view), np.float64) for view in views])


def measure_case(case: Case, lines: Sequence[Line], sizes: Sequence[int], budget: int, seeds: int, seed: int) -> dict[str, Any]:
    """label → group size → reading → interval."""
    result: dict[str, Any] = {line.label: {} for line in lines}
    for size in sizes:
        truth, views = views_of(case, size, budget, seeds, seed)
        for line in lines:
            credit = credit_of(line, views)
            result[line.label][str(size)] = {name: interval(values) for name, values in measure(credit, truth).items()}
    return result


def recurrence_of(case: Case, size: int, budget: int, seeds: int, seed: int) -> dict[str, float]:
    """What the anchors of a problem offer at this group size: means over seeds of `turnwise.credit.diagnose`."""
    _, views = views_of(case, size, budget, seeds, seed)
    result = [diagnose(view.rollouts()) for view in views]
    names = ("singleton_share", "one_trajectory_share", "anchor_size_mean", "constant_group_share")
    return {name: float(np.mean([one[name] for one in result])) for name in names}
