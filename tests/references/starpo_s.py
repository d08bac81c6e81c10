"""StarPO-S (C13): groups with little spread of returns are dropped, or weighted down."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .forms import deviation, mean


def spread(returns: Sequence[Sequence[float]]) -> list[float]:
    """Score per group: the sample standard deviation (ddof 1) of its trajectories' returns; 0 for a group of one."""
    return [deviation(group, 1) for group in returns]


def means(returns: Sequence[Sequence[float]]) -> list[float]:
    """The other score: the mean return per group."""
    return [mean(group) for group in returns]


def _candidates(scores: Sequence[float], zero: bool) -> list[int]:
    return [g for g in range(len(scores)) if zero or abs(scores[g]) > 1e-10]


def _descending(scores: Sequence[float], candidates: list[int]) -> list[int]:
    return sorted(candidates, key=lambda g: -scores[g])  # ties: the earlier group first


def top_k(scores: Sequence[float], fraction: float = 0.25, zero: bool = True) -> list[int]:
    """Indices (ascending) of the int(fraction * ALL groups) largest scores, at least one. `zero=False` drops groups of score 0 first."""
    left = _candidates(scores, zero)
    if not left:
        return []
    number = max(1, min(int(fraction * len(scores)), len(left)))
    return sorted(_descending(scores, left)[:number])


def top_p_linear(scores: Sequence[float], p: float = 0.9, zero: bool = False, slack: float = 0.01) -> list[int]:
    """Indices (ascending) of the shortest prefix, by falling score, whose sum reaches p * total - slack; p >= 1 keeps all that are left.

    Groups of score 0 never enter the prefix. The slack is absolute: if p * total <= slack the shortest prefix is empty.
    """
    left = _candidates(scores, zero)
    if p >= 1.0:
        return left
    threshold = p * math.fsum(scores[g] for g in left) - slack
    kept: list[int] = []
    total = 0.0
    for g in _descending(scores, left):
        if total >= threshold or scores[g] <= 0:
            break
        total += scores[g]
        kept.append(g)
    return sorted(kept) if total >= threshold else []


def top_p_softmax(scores: Sequence[float], p: float = 0.9, zero: bool = False) -> list[int]:
    """The same with softmax(scores) as mass: the shortest prefix with cumulative probability >= p; never empty if a group is left."""
    left = _candidates(scores, zero)
    if p >= 1.0 or not left:
        return left
    top = max(scores[g] for g in left)
    weights = {g: math.exp(scores[g] - top) for g in left}
    whole = math.fsum(weights.values())
    kept, total = [], 0.0
    for g in _descending(scores, left):
        kept.append(g)
        total += weights[g] / whole
        if total >= p:
            break
    return sorted(kept)


def min_p(scores: Sequence[float], p: float = 0.5, zero: bool = True) -> list[int]:
    """Indices (ascending) with score >= p * max score (1e-10 of tolerance). No default is published; 0.5 is ours."""
    left = _candidates(scores, zero)
    if not left:
        return []
    bound = p * max(scores[g] for g in left)
    return [g for g in left if scores[g] >= bound - 1e-10]
