"""SeeUPO's advantages: turns are compared with turns of the same number, as if each number were an agent of its own.

    A = R − mean R         over the group's attempts that have a turn t
    A ← (A − mean A) / std A       over all turns t of the batch, where std A > 1e-6
    A ← clamp(A, ±bound)

R is the return of the whole attempt. Without the division by a group's own deviation, easy and hard tasks keep their size; the deviation of
the batch sets the scale. The reverse order of updates is the schedule `seeupo`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import episode_returns, pair, segment_count, segment_sum, standardise
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats, Rollouts

SMALLEST_STD = 1e-6


@register("seeupo", paper="SeeUPO, arXiv 2602.06554", needs=("group.peers",))
def seeupo(
    r: Rollouts,
    *,
    bound: Annotated[float, Help("advantages are clamped to plus and minus this", low=0)] = 3.0,
    baseline: Annotated[Literal["turn", "group"], Help("mean over the group's attempts that have this turn, or over all")] = "turn",
) -> Floats:
    """The return relative to the group's mean, standardised over all turns with the same number, and clamped."""
    score = episode_returns(r)
    if baseline == "turn":
        segment, size = pair(r.group, r.t)
        centred = standardise(score[r.trajectory], segment, size, "none")  # its mean over a turn number is 0 by construction
    else:
        centred = _centred(standardise(score, r.per_trajectory(r.group), len(r.group_labels), "none")[r.trajectory], r.t)
    return np.clip(_scaled(centred, r.t), -bound, bound)


def _centred(values: Floats, number: Ints) -> Floats:
    size = int(number.max()) + 1
    centred: Floats = values - (segment_sum(values, number, size) / np.maximum(segment_count(number, size), 1))[number]
    return centred


def _scaled(centred: Floats, number: Ints) -> Floats:
    """Values divided by the deviation of their turn number; unchanged where that is too small to divide by."""
    size = int(number.max()) + 1
    std = np.sqrt(segment_sum(centred**2, number, size) / np.maximum(segment_count(number, size) - 1, 1))
    return centred / np.where(std > SMALLEST_STD, std, 1.0)[number]
