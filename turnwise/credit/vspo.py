"""VSPO: GRPO in which valuable groups are used again in place of groups that teach nothing.

    V(group) = (max R − mean R) · std R           large where a success is rare and possible
    uses     = 1 + copies                          as many copies as groups with equal returns, shared out in proportion to V
    A        = GRPO's · uses ^ (1 − smoothing)

`smoothing` = 0 counts each copy in full: the same as training on its rows again in the places of the groups that have no advantage.
`smoothing` = 1 ignores copies. Between the two, a group that is used often does not outweigh all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, episode_returns, is_constant, segment_count, segment_sum, standardise, trajectory_groups
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats, Rollouts

Smoothing = Annotated[float, Help("0: a copy counts in full; 1: copies count for nothing", low=0, high=1)]


@register("vspo", paper="PRS and VSPO, arXiv 2512.07478", needs=("group.peers",))
def vspo(r: Rollouts, *, norm: Norm = "std", smoothing: Smoothing = 0.5) -> Mapping[str, Any]:
    """GRPO; valuable groups count more, by as much as groups without any signal leave free."""
    group, score, size = trajectory_groups(r), episode_returns(r), len(r.group_labels)
    centred = standardise(score, group, size, "none")
    best = np.zeros(size)
    np.maximum.at(best, group, centred)
    spread = np.maximum(segment_count(group, size) - 1, 1)  # the sample deviation's
    value = best * np.sqrt(segment_sum(centred**2, group, size) / spread)
    uses = 1 + share_out(value, int(is_constant(score, group, size).sum()))
    advantage = standardise(score, group, size, norm) * (uses ** (1.0 - smoothing))[group]
    return {"turn.advantage": advantage[r.trajectory], "group.value": value, "group.uses": uses}


def share_out(value: Floats, copies: int) -> Ints:
    """`copies` whole copies in proportion to `value`: rounded down, the rest to the largest remainders, the first of equal ones."""
    total = float(value.sum())
    if total <= 0 or copies == 0:
        return np.zeros(len(value), np.int64)
    wanted = value / total * copies
    found = np.floor(wanted).astype(np.int64)
    left = np.argsort(-(wanted - found), kind="stable")[: copies - int(found.sum())]
    found[left] += 1
    return found
