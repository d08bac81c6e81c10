"""What the references share: statistics in plain Python floats.

Shapes used everywhere: a *row* is a list with one float per response token (one turn, or one whole trajectory, as the
function says); *rows* are a list of rows, ragged. Tokens that the policy did not generate are left out, there is no mask.
A *place* is a pair (row, position). Losses are to be minimised; a *gradient* is the derivative of a token's (or a row's)
own loss with respect to a token's current log-prob, before aggregation over the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Rows = list[list[float]]
Place = tuple[int, int]


def mean(xs: Sequence[float]) -> float:
    return math.fsum(xs) / len(xs)


def deviation(xs: Sequence[float], ddof: int = 1) -> float:
    """Standard deviation; exactly 0 when all values are equal or too few are there."""
    if len(xs) <= ddof or max(xs) == min(xs):
        return 0.0
    m = mean(xs)
    return math.sqrt(math.fsum((x - m) ** 2 for x in xs) / (len(xs) - ddof))


def scores(xs: Sequence[float], divide: bool = True, ddof: int = 1, eps: float = 1e-6) -> list[float]:
    """z-scores (x - mean)/(std + eps), or x - mean without the division. One value alone or equal values: exactly 0."""
    if len(xs) < 2 or max(xs) == min(xs):
        return [0.0 for _ in xs]
    m = mean(xs)
    by = deviation(xs, ddof) + eps if divide else 1.0
    return [(x - m) / by for x in xs]


def by_group(values: Sequence[float], groups: Sequence[Any], divide: bool = True, ddof: int = 1, eps: float = 1e-6) -> list[float]:
    """`scores` within each group; values[i] belongs to groups[i]. The order of the values is kept."""
    result = [0.0] * len(values)
    for g in dict.fromkeys(groups):
        members = [i for i in range(len(values)) if groups[i] == g]
        for i, x in zip(members, scores([values[i] for i in members], divide, ddof, eps), strict=True):
            result[i] = x
    return result


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def sigmoid(x: float) -> float:
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    return math.exp(x) / (1.0 + math.exp(x))


def ratio(logprob: float, old: float) -> float:
    """exp(logprob - old), the exponent held in [-20, 20]."""
    return math.exp(clip(logprob - old, -20.0, 20.0))


def clipped(advantage: float, rho: float, low: float, high: float, dual: float | None = None) -> tuple[float, float]:
    """(loss, slope): the clipped loss of one ratio, and its derivative with respect to log rho.

    loss = max(-A rho, -A clip(rho, low, high)); with `dual` and A < 0 also at most -A dual. The bounds are those of the ratio.
    Where the clipped branch is strictly larger, or the dual bound holds, the slope is 0.
    """
    free, held = -advantage * rho, -advantage * clip(rho, low, high)
    loss, slope = (held, 0.0) if held > free else (free, free)
    if dual is not None and advantage < 0 and loss > -advantage * dual:
        return -advantage * dual, 0.0
    return loss, slope


def discounted(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_k = r_k + gamma G_{k+1} over the turns of one trajectory."""
    result, carry = [0.0] * len(rewards), 0.0
    for k in range(len(rewards) - 1, -1, -1):
        carry = rewards[k] + gamma * carry
        result[k] = carry
    return result
