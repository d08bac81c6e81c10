"""The measurements: every line's credit against the truth, for each problem and group size.

A batch holds the same number of trajectories at every group size: 128 are 64 groups of 2 or 4 groups of 32. So the question is how to
spend a budget, not how much more data helps. All lines see the same batches.

The sweeps put three questions to GiGPO, one knob each: what do anchors cost that merge states, what is it worth without repeated states,
and does its gain last while the policy gets better? The first two change what credit sees and nothing else: the same trajectories, the
same truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from turnwise.credit import diagnose
from turnwise.data.rollouts import Floats
from turnwise.lab.lines import Line, Views, estimated_values, read_line
from turnwise.lab.metrics import Truth, bias_and_variance, interval, measure, summarise, truth_of
from turnwise.lab.problems import Problem
from turnwise.lab.sample import Batch, draw, sample, stack
from turnwise.lab.signals import Signals
from turnwise.lab.values import action_values, advantages, occupancy, skilled_policy, state_values
from turnwise.util.errors import TurnwiseError

ALIASING = (1, 2, 4, 8, 16)
RECURRENCE = (0.0, 0.25, 0.5, 0.75, 1.0)
SKILL = (0.0, 0.2, 0.4, 0.6, 0.8)
ALIASING_LINES = ("grpo", "gigpo", "gigpo:episode_weight=0", "hgpo")
SKILL_LINES = ("grpo", "gigpo", "gigpo:gamma=1")
READINGS = ("correlation", "gradient_cosine")


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


def views_of(case: Case, size: int, budget: int, seeds: int, seed: int) -> tuple[Truth, list[Views]]:
    """The batches of one problem and group size, with both critics' values, ready for every line."""
    batch = play(case, size, budget, seeds, seed, "measured")
    independent = play(case, size, budget, seeds, seed, "critic")
    values = {
        "estimated": estimated_values(batch, independent, case.problem.states, seeds),
        "exact": case.value[batch.t, batch.state],
    }
    truth = truth_of(case.problem, case.policy, batch, seeds, case.advantage)
    chances = [partial(stream, seed, case.problem.name, "fresh", size, run) for run in range(seeds)]
    signals = [Signals(case.problem, case.policy, batch, run, chance) for run, chance in enumerate(chances)]
    return truth, [Views(batch, run, truth.advantage, values, signals[run]) for run in range(seeds)]


def credit_of(line: Line, views: Sequence[Views]) -> Floats:
    """A line's credit for all runs, one after another."""
    return np.concatenate([np.asarray(line.credit(view), np.float64) for view in views])


def measure_case(case: Case, lines: Sequence[Line], sizes: Sequence[int], budget: int, seeds: int, seed: int) -> dict[str, Any]:
    """label → group size → reading → interval."""
    result: dict[str, Any] = {line.label: {} for line in lines}
    for size in sizes:
        truth, views = views_of(case, size, budget, seeds, seed)
        for line in lines:
            credit = credit_of(line, views)
            result[line.label][str(size)] = summarise(measure(credit, truth)) | bias_and_variance(credit, truth)
    return result


def samples_of(case: Case, lines: Sequence[Line], size: int, budget: int, seeds: int, seed: int) -> dict[str, float]:
    """Turns of the environment per turn that gets credit, by label: 1 for the batch itself, 1 for the batch from which a critic learned,
    and the turns of fresh attempts."""
    result = {}
    for line in lines:
        _, views = views_of(case, size, budget, 1, seed)
        credit = line.credit(views[0])
        result[line.label] = 1.0 + line.uses_critic + views[0].signals.spent / len(credit)
    return result


def unfit(case: Case, lines: Sequence[Line], seed: int) -> dict[str, str]:
    """The lines that cannot run on the lab's rollouts, and why: tested on one small batch."""
    _, views = views_of(case, 2, 4, 1, seed)
    reasons = {}
    for line in lines:
        try:
            line.credit(views[0])
        except TurnwiseError as error:
            reasons[line.label] = str(error)
    return reasons


def recurrence_of(case: Case, size: int, budget: int, seeds: int, seed: int) -> dict[str, float]:
    """What the anchors of a problem offer at this group size: means over seeds of `turnwise.credit.diagnose`."""
    _, views = views_of(case, size, budget, seeds, seed)
    result = [diagnose(view.rollouts()) for view in views]
    names = ("singleton_share", "one_trajectory_share", "anchor_size_mean", "constant_group_share")
    return {name: float(np.mean([one[name] for one in result])) for name in names}


def aliasing_sweep(case: Case, size: int, budget: int, seeds: int, seed: int) -> dict[str, Any] | None:
    """line → list of readings by how many states share an anchor. None for a problem whose anchors never repeat."""
    if case.problem.recurrence == 0:
        return None
    cases = {level: replace(case, problem=case.problem.with_anchors(aliasing=level)) for level in ALIASING}
    return _sweep("aliasing", cases, ALIASING_LINES, size, budget, seeds, seed)


def skill_sweep(case: Case, size: int, budget: int, seeds: int, seed: int) -> dict[str, Any]:
    """line → list of readings by the skill of the policy whose credit is measured."""
    cases = {level: make_case(case.label, case.problem, level) for level in SKILL}
    return _sweep("skill", cases, SKILL_LINES, size, budget, seeds, seed)


def _sweep(knob: str, cases: Mapping[Any, Case], labels: Sequence[str], size: int, budget: int, seeds: int, seed: int) -> dict[str, Any]:
    rows: dict[str, Any] = {label: [] for label in labels}
    for level, case in cases.items():
        truth, views = views_of(case, size, budget, seeds, seed)
        for label in labels:
            rows[label].append({knob: level, **_readings(read_line(label), truth, views)})
    return rows


def _readings(line: Line, truth: Truth, views: Sequence[Views]) -> dict[str, Any]:
    credit = credit_of(line, views)
    result = measure(credit, truth)
    return {name: interval(result[name]) for name in READINGS} | bias_and_variance(credit, truth)


def recurrence_sweep(case: Case, size: int, budget: int, seeds: int, seed: int) -> list[dict[str, Any]]:
    """A list of {recurrence, singleton_share, gain of GiGPO over GRPO, seed by seed, in correlation and gradient cosine}."""
    rows = []
    for level in RECURRENCE:
        seen = replace(case, problem=replace(case.problem, recurrence=level))
        truth, views = views_of(seen, size, budget, seeds, seed)
        ours, theirs = (measure(credit_of(read_line(name), views), truth) for name in ("gigpo", "grpo"))
        gain = {f"{name}_gain": interval(ours[name] - theirs[name]) for name in READINGS}
        singles = np.mean([diagnose(view.rollouts())["singleton_share"] for view in views])
        rows.append({"recurrence": level, "singleton_share": float(singles), **gain})
    return rows
