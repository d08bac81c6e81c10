"""LOOP: leave-one-out PPO for long interactive tasks. RLOO's credit; trajectories with almost no credit are dropped from the update.

    A(τ) = R(τ) − mean of the other trajectories' R;   dropped if |A| < `drop_below`

Dropped trajectories are masked (`turn.mask`): they are in no denominator of the loss, and neither KL nor entropy act on them. Its policy
loss is PPO's clip per token with the bounds [1/(1+ε), 1+ε], ε = 0.1, averaged per trajectory (see the objectives).
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.rloo import leave_one_out
from turnwise.credit.segments import Norm, Penalty, Weighting, unmasked
from turnwise.data.rollouts import Rollouts

DropBelow = Annotated[float, Help("trajectories with a leave-one-out credit of smaller magnitude are dropped", low=0)]


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
