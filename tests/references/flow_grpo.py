"""Flow-GRPO (A10): the outcome goes to every planner turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .forms import by_group


def advantages(
    outcomes: Sequence[float], turns: Sequence[int], groups: Sequence[Any], over: str = "turns", eps: float = 1e-6
) -> list[list[float]]:
    """Per trajectory and planner turn: the group z-score (std1 + eps) of the 0/1 outcome.

    over "turns" (the code): mean and std over ALL planner turns of the group, so that long trajectories weigh more; "trajectories" (the
    paper): over the N outcomes. Equal outcomes or one row: 0.
    """
    if over == "trajectories":
        a = by_group(outcomes, groups, eps=eps)
        return [[a[i]] * n for i, n in enumerate(turns)]
    keys = [g for g, n in zip(groups, turns, strict=True) for _ in range(n)]
    flat = iter(by_group([o for o, n in zip(outcomes, turns, strict=True) for _ in range(n)], keys, eps=eps))
    return [[next(flat) for _ in range(n)] for n in turns]
