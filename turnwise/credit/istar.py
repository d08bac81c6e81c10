"""iStar (OPRL): the outcome compared within the group, plus implicit process rewards compared with those of the group's other turns.

    A_k = A_episode + weight · A_step
    A_episode   the trajectory's return by the `baseline`, over the trajectories of the group
    A_step      the turn's implicit reward (column turn.implicit_reward) by the same baseline, over all turns of the group

Process rewards are not discounted and not summed: each turn is judged by its own. The signal is in `turnwise/methods/istar.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import EPSILON, episode_returns, segment_count, standardise, trajectory_groups
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats, Rollouts

REWARD = "turn.implicit_reward"
Baseline = Annotated[
    Literal["rloo", "mean", "mean_std", "batch_std"],
    Help("rloo: the mean of the others; mean: the mean; mean_std: and divided by the group's deviation; batch_std: by the batch's"),
]
StepWeight = Annotated[float, Help("weight of the process rewards next to the outcome", low=0)]


@register("istar", paper="Liu et al. 2025, Online Process Reward Learning, arXiv 2509.19199", needs=("group.peers", REWARD))
def istar(r: Rollouts, *, weight: StepWeight = 1.0, baseline: Baseline = "rloo") -> Floats:
    """Outcome credit plus the implicit process reward of each turn, both relative to the group."""
    size = len(r.group_labels)
    episode = centred(episode_returns(r), trajectory_groups(r), size, baseline)[r.trajectory]
    return episode + weight * centred(np.asarray(r.column(REWARD), np.float64), r.group, size, baseline)


def centred(values: Floats, group: Ints, size: int, baseline: str) -> Floats:
    """Values relative to those of their group."""
    if baseline == "mean_std":
        return standardise(values, group, size, "std")
    found = standardise(values, group, size, "none")
    if baseline == "rloo":
        count = segment_count(group, size).astype(np.float64)
        return found * (count / np.maximum(count - 1, 1))[group]
    if baseline == "batch_std" and len(found) > 1:
        return np.asarray(found / (np.std(found, ddof=1) + EPSILON))
    return found
