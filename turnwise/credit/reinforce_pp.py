"""REINFORCE++: no group statistics; the scores are normalised over the whole batch.

    A = (score − batch mean) / (batch std + 1e-6)

The score of a turn is its trajectory's return or, with returns="to_go", the return from this turn on, discounted per turn.
With the usual single reward at the end and γ = 1 the two are the same.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Penalty, TurnDiscount, Weighting, discounted_returns, segment_count, standardise
from turnwise.data.rollouts import Floats, Rollouts


@register("reinforce_pp", paper="Hu et al. 2025, REINFORCE++, arXiv 2501.03262")
def reinforce_pp(
    r: Rollouts,
    *,
    returns: Annotated[Literal["episode", "to_go"], Help("a turn's score: its trajectory's return, or the return to go")] = "episode",
    gamma: TurnDiscount = 1.0,
    norm: Norm = "std",
    weighting: Weighting = "trajectory",
    invalid_penalty: Penalty = 0.0,
) -> Floats:
    """A turn's return, normalised over the whole batch instead of its group. `gamma` applies to returns=to_go."""
    if returns == "episode":
        batch = np.zeros(len(r.trajectory_labels), np.int64)
        return episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty, group=batch)
    return batch_normalised(r, discounted_returns(r, gamma), norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)


def batch_normalised(r: Rollouts, score: Floats, *, norm: str, weighting: str, invalid_penalty: float) -> Floats:
    """Scores of turns relative to the whole batch; each trajectory counts once (its turns share its weight), or each turn does."""
    charge = invalid_penalty * ~r.valid
    batch = np.zeros(len(r), np.int64)
    if weighting == "step":
        return standardise(score - charge, batch, 1, norm)
    share = 1.0 / segment_count(r.trajectory, len(r.trajectory_labels)).astype(np.float64)
    return standardise(score, batch, 1, norm, weight=share[r.trajectory]) - charge
