"""ARPO's hard attribution: a turn that several attempts share gets the mean of their advantages.

    A(τ) = (R(τ) − mean R) / (std R + 1e-6)            over all attempts of the group, branches included
    credit of a turn = mean of A(τ) over the attempts τ that contain this very turn

A branch contains the turns of its parent up to where it starts, and through it those of the parent's parent. Without branches this is GRPO.
Train the shared turns once (`collect.shared_prefix = "once"`): with every copy trained, copies with the mean advantage add up to what
copies with their own advantages give.
"""

from __future__ import annotations

import numpy as np

from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Penalty, Weighting, relative, segment_count, segment_first, segment_sum, shared_turns
from turnwise.data.rollouts import Floats, Rollouts


@register("arpo", paper="Dong et al. 2025, ARPO, arXiv 2507.19849", needs=("group.peers",))
def arpo(r: Rollouts, *, norm: Norm = "std", weighting: Weighting = "trajectory", invalid_penalty: Penalty = 0.0) -> Floats:
    """GRPO's credit; a turn that several attempts share gets the mean of their credits."""
    credit = episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)
    turn, size = shared_turns(r)
    mean = segment_sum(relative(credit, turn, size), turn, size) / segment_count(turn, size)
    shared: Floats = (segment_first(credit, turn, size).astype(np.float64) + mean)[turn]
    return shared
