"""REINFORCE++-baseline: the group's mean as baseline, the whole batch's standard deviation as scale.

    A(τ) = (R(τ) − group mean) / (batch std of R − group mean + 1e-6)

The credit of an easy task, with nearly equal returns, then stays small instead of being inflated by its own small deviation. The batch mean
of the differences is 0 by construction, so it is not subtracted again: a constant group keeps exactly 0. weighting="token" is the public
code: mean and deviation of the differences over all tokens of the batch; that mean is not 0, because long attempts weigh more.
"""

from __future__ import annotations

import numpy as np

from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.reinforce_pp import batch_normalised
from turnwise.credit.segments import EPSILON, BatchWeighting, Norm, Penalty, episode_returns, standardise, trajectory_groups
from turnwise.data.rollouts import Floats, Rollouts


@register("reinforce_pp_baseline", paper="Hu et al. 2025, REINFORCE++, arXiv 2501.03262", needs=("group.peers",))
def reinforce_pp_baseline(
    r: Rollouts, *, norm: Norm = "std", weighting: BatchWeighting = "trajectory", invalid_penalty: Penalty = 0.0
) -> Floats:
    """A trajectory's return minus its group's mean, divided by the standard deviation over the whole batch."""
    if weighting == "step":
        return _scaled(episode_credit(r, norm="none", weighting="step", invalid_penalty=invalid_penalty), norm)
    centred = standardise(episode_returns(r), trajectory_groups(r), len(r.group_labels), "none")
    if weighting == "token" and norm == "std":
        return batch_normalised(r, centred[r.trajectory], norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)
    return _scaled(centred, norm)[r.trajectory] - invalid_penalty * ~r.valid


def _scaled(centred: Floats, norm: str) -> Floats:
    if norm == "none":
        return centred
    std = float(np.sqrt((centred**2).sum() / max(len(centred) - 1, 1)))
    return centred / (std + EPSILON)
