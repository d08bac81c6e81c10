"""What of GiGPO is comparison within states, and what is the discount? Two credits that discount and know no states.

one_state         GiGPO as if all turns of a group started from one state: a turn's discounted return compared with the whole group's
discounted_grpo   GRPO, where a return that comes later counts for less
"""

from __future__ import annotations

import numpy as np

from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import TurnDiscount, discounted_returns, segment_first, standardise
from turnwise.data.rollouts import Floats, Rollouts


@register("one_state", needs=("group.peers",))
def one_state(r: Rollouts, *, gamma: TurnDiscount = 0.95) -> Floats:
    """Episode credit plus each turn's discounted return, standardised over all turns of the group."""
    episode = episode_credit(r, norm="std", weighting="trajectory", invalid_penalty=0.0)
    return episode + standardise(discounted_returns(r, gamma), np.asarray(r.group), len(r.group_labels), "std")


@register("discounted_grpo", needs=("group.peers",))
def discounted_grpo(r: Rollouts, *, gamma: TurnDiscount = 0.95) -> Floats:
    """Episode credit of returns that are discounted from the first turn on."""
    score = segment_first(discounted_returns(r, gamma), r.trajectory, len(r.trajectory_labels))
    return episode_credit(r, norm="std", weighting="trajectory", invalid_penalty=0.0, score=score)
