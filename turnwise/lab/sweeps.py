"""Three questions to GiGPO, one knob each: what do anchors cost that merge states, what is it worth without repeated states, and does
its gain last while the policy gets better? The first two change what credit sees and nothing else: the same trajectories, the same truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from turnwise.credit import diagnose
from turnwise.lab.lines import Line, Views, read_line
from turnwise.lab.metrics import Truth, bias_and_variance, interval, measure
from turnwise.lab.study import Case, Tick, credit_of, make_case, views_of

ALIASING = (1, 2, 4, 8, 16)
RECURRENCE = (0.0, 0.25, 0.5, 0.75, 1.0)
SKILL = (0.0, 0.2, 0.4, 0.6, 0.8)
ALIASING_LINES = ("grpo", "gigpo", "gigpo:episode_weight=0", "hgpo")
SKILL_LINES = ("grpo", "gigpo", "gigpo:gamma=1")
READINGS = ("correlation", "gradient_cosine")


def aliasing_sweep(cases: Sequence[Case], size: int, budget: int, seeds: int, seed: int, tick: Tick) -> dict[str, Any]:
    """problem → line → list of readings by how many states share an anchor. Problems whose anchors never repeat are left out."""
    seen = [case for case in cases if case.problem.recurrence > 0]

    def merge(case: Case, level: Any) -> Case:
        return replace(case, problem=case.problem.with_anchors(aliasing=level))

    return _sweep(seen, "aliasing", ALIASING, merge, ALIASING_LINES, (size, budget, seeds, seed), tick)


def skill_sweep(cases: Sequence[Case], size: int, budget: int, seeds: int, seed: int, tick: Tick) -> dict[str, Any]:
    """problem → line → list of readings by the skill of the policy whose credit is measured."""

    def train(case: Case, level: Any) -> Case:
        return make_case(case.label, case.problem, level)

    return _sweep(cases, "skill", SKILL, train, SKILL_LINES, (size, budget, seeds, seed), tick)


def _sweep(
    cases: Sequence[Case],
    knob: str,
    levels: Sequence[Any],
    change: Callable[[Case, Any], Case],
    labels: Sequence[str],
    shared: tuple[int, int, int, int],
    tick: Tick,
) -> dict[str, Any]:
    lines = [read_line(label) for label in labels]
    result: dict[str, Any] = {}
    for case in cases:
        rows: dict[str, Any] = {line.label: [] for line in lines}
        for level in levels:
            truth, views = views_of(change(case, level), *shared)
            for line in lines:
                rows[line.label].append({knob: level, **_readings(line, truth, views)})
            tick()
        result[case.label] = rows
    return result


def _readings(line: Line, truth: Truth, views: Sequence[Views]) -> dict[str, Any]:
    credit = credit_of(line, views)
    found = measure(credit, truth)
    return {name: interval(found[name]) for name in READINGS} | bias_and_variance(credit, truth)


def recurrence_sweep(cases: Sequence[Case], size: int, budget: int, seeds: int, seed: int, tick: Tick) -> dict[str, Any]:
    """problem → list of {recurrence, singleton_share, gain of GiGPO over GRPO, seed by seed, in correlation and gradient cosine}."""
    gigpo, grpo = read_line("gigpo"), read_line("grpo")
    result: dict[str, Any] = {}
    for case in cases:
        rows = []
        for level in RECURRENCE:
            seen = replace(case, problem=replace(case.problem, recurrence=level))
            truth, views = views_of(seen, size, budget, seeds, seed)
            ours, theirs = (measure(credit_of(line, views), truth) for line in (gigpo, grpo))
            gain = {f"{name}_gain": interval(ours[name] - theirs[name]) for name in READINGS}
            singles = np.mean([diagnose(view.rollouts())["singleton_share"] for view in views])
            rows.append({"recurrence": level, "singleton_share": float(singles), **gain})
            tick()
        result[case.label] = rows
    return result
