"""GRPO: the episode level. Trajectories of one task are compared with each other; every turn of a trajectory gets the same credit.

    A(τ) = (R(τ) − mean R) / (std R + 1e-6)        over the N trajectories of the group

An invalid turn is charged c = `invalid_penalty`. With weighting="trajectory" the statistics are of the unpenalised returns and c is
subtracted from that turn's credit afterwards: inside the division, one invalid turn in a group where all fail would explode. With
weighting="step" it is subtracted from the turn's score before the statistics over all turns, as the public code of GiGPO does.

Dr. GRPO: GRPO without the division by the standard deviation, which gives very easy and very hard tasks more weight.

    A(τ) = R(τ) − mean R

The other half of the method, dividing the summed token losses by a constant instead of by the response's length, is the
objective's aggregation `turn_sum` or `trajectory_sum`.
"""

from __future__ import annotations

import numpy as np

from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Penalty, Weighting, episode_returns, segment_count, standardise, trajectory_groups
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats, Rollouts


@register("grpo", paper="Shao et al. 2024, DeepSeekMath, arXiv 2402.03300", parts={"episode": None}, needs=("group.peers",))
def grpo(r: Rollouts, *, norm: Norm = "std", weighting: Weighting = "trajectory", invalid_penalty: Penalty = 0.0) -> Floats:
    """Episode credit: a trajectory's return relative to its group's mean, in standard deviations, the same for all its turns."""
    return episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)


@register(
    "dr_grpo",
    paper="Liu et al. 2025, Understanding R1-Zero-Like Training, arXiv 2503.20783",
    parts={"episode": None},
    needs=("group.peers",),
)
def dr_grpo(r: Rollouts, *, norm: Norm = "none", weighting: Weighting = "trajectory", invalid_penalty: Penalty = 0.0) -> Floats:
    """Episode credit without the division by the standard deviation: a trajectory's return minus its group's mean."""
    return episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)


def episode_credit(
    r: Rollouts, *, norm: str, weighting: str, invalid_penalty: float, group: Ints | None = None, score: Floats | None = None
) -> Floats:
    """The episode credit of each turn. `group` replaces the task group of each trajectory, `score` its return (both by trajectory)."""
    group = trajectory_groups(r) if group is None else group
    score = episode_returns(r) if score is None else score
    size = int(group.max()) + 1
    charge = invalid_penalty * ~r.valid
    if weighting == "trajectory":
        return standardise(score, group, size, norm)[r.trajectory] - charge
    credit = standardise(score[r.trajectory] - charge, group[r.trajectory], size, norm)
    alone = segment_count(group, size) == 1
    return np.where(alone[group[r.trajectory]], 0.0, credit)
