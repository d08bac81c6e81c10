"""ReBel: turns are compared with turns of the same belief, and beliefs that agree with what was seen are rewarded.

    A      = A_ep + w · A_step
    A_ep   = R − mean R                                    over the trajectories of the group, not divided
    A_step = (G − mean G) + (C − mean C)                   each over the turns of the group with the same belief
    G_k    = γ^(T−1−k) · R                                 T turns: the whole return, discounted by the turns to the end
    C      = discounted sum of the rewards for consistent beliefs (column turn.consistency)

With a reward at the end alone, G is the discounted sum of rewards. With rewards before the end it is not: R counts on every turn.

A turn without a belief (column turn.belief below 0), or with one that no other turn has, has no step credit.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import TurnDiscount, episode_returns, pair, reverse_scan, standardise
from turnwise.data.rollouts import Floats, Rollouts

BELIEF, CONSISTENCY = "turn.belief", "turn.consistency"


@register("rebel", paper="ReBel, arXiv 2605.20061", needs=("group.peers", BELIEF, CONSISTENCY))
def rebel(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 0.95,
    weight: Annotated[float, Help("weight of the step credit within belief groups", low=0)] = 0.5,
) -> Floats:
    """Episode credit without division, plus step credit among turns of the same belief: returns and consistency, each centred."""
    to_end = reverse_scan(np.ones(len(r)), 1.0, r.trajectory) - 1
    outcome = gamma**to_end * episode_returns(r)[r.trajectory]
    belief = np.asarray(r.column(BELIEF), np.int64)
    held = belief >= 0
    segment, size = pair(r.group[held], belief[held])
    step = np.zeros(len(r))
    for score in (outcome, reverse_scan(np.asarray(r.column(CONSISTENCY), np.float64), gamma, r.trajectory)):
        step[held] += standardise(score[held], segment, size, "none")
    return episode_credit(r, norm="none", weighting="trajectory", invalid_penalty=0.0) + weight * step
