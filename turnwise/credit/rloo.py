"""RLOO: REINFORCE with a leave-one-out baseline.

    A(τ) = R(τ) − mean of the other trajectories' R = N/(N−1) · (R(τ) − mean R)

Unbiased: a trajectory's baseline does not contain its own return. With weighting="step" N counts turns, as in the public code of GiGPO.

LOOP: leave-one-out PPO for long interactive tasks. RLOO's credit; trajectories with almost no credit (|A| < `drop_below`) are dropped from
the update. Dropped trajectories are masked (`turn.mask`): they are in no denominator of the loss, and neither KL nor entropy act on them.
Its policy loss is PPO's clip per token with the bounds [1/(1+ε), 1+ε], ε = 0.1, averaged per trajectory (see the objectives).
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Penalty, Weighting, segment_count, trajectory_groups, unmasked
from turnwise.data.rollouts import Floats, Rollouts

DropBelow = Annotated[float, Help("trajectories with a leave-one-out credit of smaller magnitude are dropped", low=0)]


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


@register(
    "loop",
    paper="Chen et al. 2025, Reinforcement Learning for Long-Horizon Interactive LLM Agents, arXiv 2502.01600",
    needs=("group.peers",),
)
def loop(
    r: Rollouts,
    *,
    norm: Norm = "none",
    weighting: Weighting = "trajectory",
    invalid_penalty: Penalty = 0.0,
    drop_below: DropBelow = 0.01,
) -> dict[str, Any]:
    """Leave-one-out credit as in RLOO; trajectories that differ too little from the others are dropped."""
    whole = leave_one_out(r, norm=norm, weighting=weighting, invalid_penalty=0.0)
    kept = unmasked(r, np.abs(whole) >= drop_below)
    credit = leave_one_out(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty) if invalid_penalty else whole
    return {"turn.advantage": np.where(kept, credit, 0.0), "turn.mask": kept}
