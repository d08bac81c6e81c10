"""SeeUPO (A9): advantages among the turns of one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .forms import by_group, clip, deviation, mean


def advantages(returns: Sequence[float], groups: Sequence[Any], bound: float = 3.0) -> list[float]:
    """For the rows of ONE turn index: R - mean of the group's rows (no std), then z-scored over all rows given, then held in [-bound,
    bound].

    The z-score is (x - mean)/std1 without eps where std1 > 1e-6, else x - mean. A group with one row: 0 before the z-score. Equal values:
    0.
    """
    xs = by_group(returns, groups, divide=False)
    if not xs or max(xs) == min(xs):
        return [0.0 for _ in xs]
    m, s = mean(xs), deviation(xs, 1)
    return [clip((x - m) / s if s > 1e-6 else x - m, -bound, bound) for x in xs]
