"""LOOP: leave-one-out PPO for long interactive tasks. RLOO's credit; trajectories with almost no credit are dropped from the update.

    A(τ) = R(τ) − mean of the other trajectories' R;   |A| ≤ `drop_below` → 0

Its policy loss is PPO's clip per token with the bounds [1/(1+ε), 1+ε], ε = 0.1, averaged per trajectory (see the objectives).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.rloo import leave_one_out
from turnwise.credit.segments import Norm, Penalty, Weighting
from turnwise.data.rollouts import Floats, Rollouts


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
    drop_below: Annotated[float, Help("leave-one-out credit of at most this magnitude counts as 0", low=0)] = 0.01,
) -> Floats:
    """Leave-one-out credit as in RLOO; trajectories that differ too little from the others are dropped."""
    before, after = (invalid_penalty, 0.0) if weighting == "step" else (0.0, invalid_penalty)
    credit = leave_one_out(r, norm=norm, weighting=weighting, invalid_penalty=before)
    kept = np.abs(credit) > drop_below
    return np.asarray(kept * credit - after * ~r.valid)
