"""ReBel (B5): steps are grouped by belief; returns of the task and of the belief's consistency are normalised separately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .forms import Trajectory, by_group, deviation, discounted, mean


def consistency(state: float, task: float, prediction: float, form: float) -> float:
    """r_cons = 0.40 r_state + 0.30 r_task + 0.20 r_pred + 0.10 r_format."""
    return 0.40 * state + 0.30 * task + 0.20 * prediction + 0.10 * form


def advantages(trajectories: Sequence[Trajectory], weight: float = 0.5, gamma: float = 0.95) -> list[list[float]]:
    """A = A_ep + weight A_step per trajectory and turn. turn.reward: environment; turn.extra["consistency"]; turn.extra["belief"]: its key.

    A_ep: the trajectory's environment return minus the group's mean over trajectories (one value each, no std; group of one: 0).
    A_step: (G_env - mean) + (G_cons - mean) within (group, belief), over turns, no std, G discounted; one turn alone: 0.
    """
    groups = [t.group for t in trajectories]
    episode = by_group([t.total for t in trajectories], groups, divide=False)
    keys = [(t.group, turn.extra["belief"]) for t in trajectories for turn in t.turns]
    env = [g for t in trajectories for g in discounted([turn.reward for turn in t.turns], gamma)]
    cons = [g for t in trajectories for g in discounted([turn.extra["consistency"] for turn in t.turns], gamma)]
    a, b = by_group(env, keys, divide=False), by_group(cons, keys, divide=False)
    it = iter([x + y for x, y in zip(a, b, strict=True)])
    return [[episode[i] + weight * next(it) for _ in t.turns] for i, t in enumerate(trajectories)]


def per_type(values: Sequence[float], types: Sequence[Any], least: int = 10, spread: float = 0.2, eps: float = 1e-6) -> list[float]:
    """Optional last step: z-score (std1 + eps) among turns of a task type with >= `least` turns and std >= `spread`; else unchanged."""
    result = list(values)
    for kind in dict.fromkeys(types):
        members = [i for i in range(len(values)) if types[i] == kind]
        xs = [values[i] for i in members]
        if len(xs) >= least and deviation(xs, 1) >= spread:
            for i in members:
                result[i] = (values[i] - mean(xs)) / (deviation(xs, 1) + eps)
    return result
