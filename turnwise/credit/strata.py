"""StraTA: strategies are compared with strategies, and actions with actions under the same strategy.

    R(z)   = mean of the best ⌈delta · M⌉ returns of the M attempts with strategy z
    A(z)   = (R(z) − mean) / (std + 1e-6)              over the strategies of a task; for the turn that wrote the strategy
    R(a_t) = R(τ) − kappa · [turn t is flagged]
    A(a_t) = (R(a_t) − mean) / (std + 1e-6)            over the attempts with the same strategy; for all other turns

The columns come from the plan `strata`: `turn.strategy` (a number that is unique in the group), `turn.writes` (1 for the turn that wrote
it) and `turn.flagged` (1 for a turn that is charged).
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import (
    EPSILON,
    deviation,
    episode_returns,
    is_constant,
    pair,
    segment_count,
    segment_first,
    segment_sum,
    standardise,
)
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats, Rollouts

PAPER = "StraTA, arXiv 2605.06642"
COLUMNS = ("turn.strategy", "turn.writes", "turn.flagged")
Delta = Annotated[float, Help("share of a strategy's attempts, the best ones, that its return is the mean of", low=0, high=1)]
Kappa = Annotated[float, Help("subtracted from the return for a flagged turn", low=0)]
Pool = Annotated[
    Literal["turns", "trajectories"],
    Help("what counts once in the statistics of a strategy: each turn (long attempts weigh more), or each attempt"),
]
Weight = Annotated[float, Help("factor of the credit of strategies", low=0)]


@register("strata", paper=PAPER, needs=(*COLUMNS, "group.peers"))
def strata(r: Rollouts, *, delta: Delta = 0.5, kappa: Kappa = 0.1, pool: Pool = "turns", weight: Weight = 1.0) -> Floats:
    """Credit of a strategy against the task's other strategies, and of actions against other attempts with the same strategy."""
    number, writes, flagged = (r.need(name, "strata") for name in COLUMNS)
    strategy, size = pair(r.group, np.asarray(number, np.int64))
    acts = np.asarray(writes) == 0
    charge = kappa * np.where(acts, flagged, 0.0)
    score = episode_returns(r)
    attempts = np.unique(r.trajectory[acts])
    of_attempt = segment_first(strategy, r.trajectory, len(score)).astype(np.int64)[attempts]

    value, tried = best_mean(score[attempts], of_attempt, size, delta), segment_count(of_attempt, size) > 0
    task = segment_first(r.group, strategy, size).astype(np.int64)
    of_strategy = np.zeros(size)
    of_strategy[tried] = standardise(value[tried], task[tried], len(r.group_labels), "std")

    credit = weight * of_strategy[strategy]
    if pool == "turns":
        credit[acts] = standardise((score[r.trajectory] - charge)[acts], strategy[acts], size, "std")
        return credit
    centred = np.zeros(len(score))
    centred[attempts] = standardise(score[attempts], of_attempt, size, "none")
    spread = deviation(score[attempts], of_attempt, size) + EPSILON
    by_attempt = np.where(
        is_constant(score[attempts], of_attempt, size)[strategy], 0.0, (centred[r.trajectory] - charge) / spread[strategy]
    )
    credit[acts] = by_attempt[acts]
    return credit


def best_mean(values: Floats, segment: Ints, size: int, share: float) -> Floats:
    """The mean of the largest ⌈share · n⌉ of the n values of each segment, at least of one; 0 for an empty segment."""
    order = np.lexsort((-values, segment))
    count = segment_count(segment, size)
    rank = np.arange(len(values)) - (np.cumsum(count) - count)[segment[order]]
    most = np.maximum(np.ceil(share * count - 1e-9), 1.0)
    kept = order[rank < most[segment[order]]]
    first = segment_first(values[order], segment[order], size).astype(np.float64)  # the largest: equal values have exactly this mean
    means: Floats = first + segment_sum(values[kept] - first[segment[kept]], segment[kept], size) / most
    return means
