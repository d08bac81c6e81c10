"""StraTA (A15): strategies are compared with strategies, actions with actions under the same strategy.

Neither the paper's text nor code of the authors could be had: this is written from notes on the paper. A second reading of the same
notes, by somebody who did not know the implementation, gave the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from references.forms import by_group, deviation, mean, scores


def farthest(embeddings: Sequence[Sequence[float]], number: int = 4, first: int = 0) -> list[int]:
    """Indices of `number` diverse candidates, in the order chosen: `first`, then again and again argmin over the rest of the largest inner
    product with a chosen one. Ties: the earlier. The first choice is not published; 0 is ours. Embeddings are used as given (unit
    length)."""
    chosen = [first]
    while len(chosen) < min(number, len(embeddings)):
        rest = [i for i in range(len(embeddings)) if i not in chosen]
        chosen.append(min(rest, key=lambda i: max(_dot(embeddings[i], embeddings[j]) for j in chosen)))
    return chosen


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def strategy_return(returns: Sequence[float], delta: float = 0.5) -> float:
    """R(z): mean of the best ceil(delta * M) of the strategy's M returns (at least one)."""
    number = max(1, math.ceil(delta * len(returns) - 1e-9))
    return mean(sorted(returns, reverse=True)[:number])


def strategy_advantages(returns: Sequence[Sequence[float]], delta: float = 0.5, eps: float = 1e-6) -> list[float]:
    """A(z) per strategy of one task: z-score (std1 + eps) of R(z) over the N strategies; returns[z] are the M returns of strategy z."""
    return scores([strategy_return(r, delta) for r in returns], eps=eps)


def action_advantages(
    returns: Sequence[float],
    flags: Sequence[Sequence[bool]],
    strategies: Sequence[int | str],
    kappa: float = 0.1,
    pool: str = "turns",
    eps: float = 1e-6,
) -> list[list[float]]:
    """A(a_t) per rollout and turn, R(a_t) = R(tau) - kappa [flagged]; flags[i][k] of rollout i, strategies[i] its strategy (unique over
    tasks).

    pool "turns": z-score (std1 + eps) over all turns of the strategy's M rollouts. pool "trajectories": mean and std of the M returns
    R(tau),
    so that longer rollouts do not weigh more. The source says "GRPO within the M rollouts". Equal values in the pool: 0 for unflagged
    turns.
    """
    values = [[r - kappa * f for f in row] for r, row in zip(returns, flags, strict=True)]
    if pool == "turns":
        keys = [s for s, row in zip(strategies, flags, strict=True) for _ in row]
        flat = iter(by_group([v for row in values for v in row], keys, eps=eps))
        return [[next(flat) for _ in row] for row in values]
    result = []
    for s, row in zip(strategies, values, strict=True):
        own = [r for r, t in zip(returns, strategies, strict=True) if t == s]
        result.append([(v - mean(own)) / (deviation(own, 1) + eps) if max(own) != min(own) else 0.0 for v in row])
    return result
