"""iStar (A11): step rewards from an implicit process reward model, trained on pairs of success and failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .forms import by_group


def relative(values: Sequence[float], groups: Sequence[Any], how: str = "rloo", eps: float = 1e-6) -> list[float]:
    """Within each group. rloo: n/(n - 1)(x - mean); mean: x - mean; std: (x - mean)/(std1 + eps). One value or equal values: 0."""
    if how == "std":
        return by_group(values, groups, eps=eps)
    sizes = [sum(h == g for h in groups) for g in groups]
    plain = by_group(values, groups, divide=False)
    return [x * n / (n - 1) if how == "rloo" and n > 1 else x for x, n in zip(plain, sizes, strict=True)]


def advantages(
    outcomes: Sequence[float],
    steps: Sequence[Sequence[float]],
    groups: Sequence[Any],
    weight: float = 1.0,
    how: str = "rloo",
    eps: float = 1e-6,
) -> list[list[float]]:
    """A_episode + weight A_step per trajectory and turn. Episode: one outcome per trajectory. Step: r_k against ALL steps of the group (the
    paper; the code takes only each trajectory's first row). No discount."""
    episode = relative(outcomes, groups, how, eps)
    keys = [g for row, g in zip(steps, groups, strict=True) for _ in row]
    flat = iter(relative([r for row in steps for r in row], keys, how, eps))
    return [[episode[i] + weight * next(flat) for _ in row] for i, row in enumerate(steps)]
