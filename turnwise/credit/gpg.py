"""GPG: the return minus the mean of the group, made larger where other groups of the batch say nothing.

    A(τ) = α · (R(τ) − mean R) / F        α = B / (B − M),   F = 1, or std R + 1e-6 with norm="std"

B counts the trajectories of the batch, M those in groups whose returns are all equal. Such groups add nothing to the gradient but count in
its mean; α makes up for it. With no group that differs, all credit is 0.
"""

from __future__ import annotations

import numpy as np

from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Penalty, episode_returns, is_constant, trajectory_groups
from turnwise.data.rollouts import Floats, Rollouts


@register("gpg", paper="Chu et al. 2025, GPG, arXiv 2504.02546", parts={"episode": None}, needs=("group.peers",))
def gpg(r: Rollouts, *, norm: Norm = "none", invalid_penalty: Penalty = 0.0) -> Floats:
    """The return relative to the group's mean, scaled up by the share of trajectories that are in groups without a difference."""
    credit = episode_credit(r, norm=norm, weighting="trajectory", invalid_penalty=0.0)
    return alpha(r) * credit - invalid_penalty * ~r.valid


def alpha(r: Rollouts) -> float:
    """All trajectories relative to those in groups whose returns differ; 1 if there is none."""
    group = trajectory_groups(r)
    dead = is_constant(episode_returns(r), group, len(r.group_labels))[group]
    alive = int(np.count_nonzero(~dead))
    return len(group) / alive if alive else 1.0
