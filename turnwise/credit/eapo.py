"""EAPO: the final reward, discounted by the distance to the end, compared over all turns of the group.

    r_k = γ^(K−k) · R                 R: the trajectory's return, K: its last turn
    A_k = (r_k − mean r) / (std r + 1e-6)     over all turns of all trajectories of the group

A success in fewer turns has larger rewards, so it is preferred to a long one.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, episode_returns, segment_count, standardise
from turnwise.data.rollouts import Floats, Rollouts

EarlyDiscount = Annotated[float, Help("factor per turn between a turn and the end", low=0, high=1)]


@register("eapo", paper="IterResearch, arXiv 2511.07327", needs=("group.peers",))
def eapo(r: Rollouts, *, gamma: EarlyDiscount = 0.995, norm: Norm = "std") -> Floats:
    """The return, discounted by the number of turns that follow, relative to all turns of the group."""
    length = segment_count(r.trajectory, len(r.trajectory_labels))
    reward = np.power(gamma, (length[r.trajectory] - 1 - r.t).astype(np.float64)) * episode_returns(r)[r.trajectory]
    return standardise(reward, r.group, len(r.group_labels), norm)
