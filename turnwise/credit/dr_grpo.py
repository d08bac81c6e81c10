"""Dr. GRPO: GRPO without the division by the standard deviation, which gives very easy and very hard tasks more weight.

    A(τ) = R(τ) − mean R

The other half of the method, dividing the summed token losses by a constant instead of by the response's length, is the
objective's aggregation `turn_sum` or `trajectory_sum`.
"""

from __future__ import annotations

from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Penalty, Weighting
from turnwise.data.rollouts import Floats, Rollouts


@register(
    "dr_grpo",
    paper="Liu et al. 2025, Understanding R1-Zero-Like Training, arXiv 2503.20783",
    parts={"episode": None},
    needs=("group.peers",),
)
def dr_grpo(r: Rollouts, *, norm: Norm = "none", weighting: Weighting = "trajectory", invalid_penalty: Penalty = 0.0) -> Floats:
    """Episode credit without the division by the standard deviation: a trajectory's return minus its group's mean."""
    return episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)
