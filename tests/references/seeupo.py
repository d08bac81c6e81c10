"""SeeUPO (A9): turns are updated one after another from the last to the first, with the accumulated ratio of the later turns."""

from __future__ import annotations

import math
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


def order(turns: int) -> list[int]:
    """Turn indices in the order of their updates, from turns - 1 down to 0."""
    return list(range(turns - 1, -1, -1))


def accumulated(before: float, logprobs: Sequence[float], old: Sequence[float], eps: float = 0.2) -> float:
    """c after the update of a turn: clip(c * s, 1 - eps, 1 + eps), s = clip(exp(mean(new - old)), 1 - eps, 1 + eps) over the turn's tokens.

    logprobs: after the update; old: before it. The exponent is held in [-10, 10]. c starts at 1.
    """
    s = math.exp(clip(mean([x - y for x, y in zip(logprobs, old, strict=True)]), -10.0, 10.0))
    return clip(before * clip(s, 1 - eps, 1 + eps), 1 - eps, 1 + eps)


def factors(logprobs: Sequence[Sequence[float]], old: Sequence[Sequence[float]], eps: float = 0.2) -> list[float]:
    """One trajectory: the factor on the advantage of each turn k, the c accumulated over the turns after k; 1 for its last turn."""
    result, c = [1.0] * len(old), 1.0
    for k in order(len(old)):
        result[k] = c
        c = accumulated(c, logprobs[k], old[k], eps)
    return result
