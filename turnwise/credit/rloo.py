"""RLOO: REINFORCE with a leave-one-out baseline.

    A(τ) = R(τ) − mean of the other trajectories' R = N/(N−1) · (R(τ) − mean R)

Unbiased: a trajectory's baseline does not contain its own return. With weighting="step" N counts turns, as in the public code of GiGPO.
"""

from __future__ import annotations

import numpy as np

from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Penalty, Weighting, segment_count, trajectory_groups
from turnwise.data.rollouts import Floats, Rollouts


@register("rloo", paper="Ahmadian et al. 2024, Back to Basics, arXiv 2402.14740", needs=("group.peers",))
def rloo(r: Rollouts, *, norm: Norm = "none", weighting: Weighting = "trajectory", invalid_penalty: Penalty = 0.0) -> Floats:
    """Episode credit with a leave-one-out baseline: a trajectory's return minus the mean of the others in its group."""
    return leave_one_out(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)


def leave_one_out(r: Rollouts, *, norm: str, weighting: str, invalid_penalty: float) -> Floats:
    """Episode credit × N/(N−1). The penalty of an invalid turn is scaled only if it is part of the statistics."""
    counted = trajectory_groups(r) if weighting == "trajectory" else r.group
    count = segment_count(counted, len(r.group_labels)).astype(np.float64)
    factor = (count / np.maximum(count - 1, 1))[r.group]
    if weighting == "step":
        return factor * episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)
    return factor * episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=0.0) - invalid_penalty * ~r.valid
