"""STEP-HRL's credit: what a response is worth minus what its state is worth, by the critic of its role.

    A = Q − V, with `balance` times N / (roles · N_role): a mean over all turns is then the mean of the roles' means

Turns that are in the batch for the critics alone (`turn.critic_only`) are masked.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.archer import CRITIC_ONLY
from turnwise.credit.registry import register
from turnwise.credit.segments import unmasked
from turnwise.data.anchors import dense
from turnwise.data.rollouts import Rollouts

ROLE, Q, V = "turn.role", "turn.q", "turn.v"
Balance = Annotated[bool, Help("each role weighs the same, however many turns it has")]


@register("step_hrl", paper="STEP-HRL, arXiv 2604.05808", needs=(ROLE, Q, V))
def step_hrl(r: Rollouts, *, balance: Balance = True) -> dict[str, Any]:
    """The value of the response minus the value of its state, by the critic of the role that the turn is in."""
    advantage = np.asarray(r.need(Q, "step_hrl"), np.float64) - np.asarray(r.need(V, "step_hrl"), np.float64)
    kept = np.ones(len(r), np.bool_)
    if r.has(CRITIC_ONLY):
        kept &= ~(np.asarray(r.column(CRITIC_ONLY), np.float64) > 0)
    kept = unmasked(r, kept)
    if balance and kept.any():
        distinct, role = dense(np.asarray(r.need(ROLE, "step_hrl")).astype(np.int64))
        count = np.bincount(role[kept], minlength=len(distinct))
        advantage *= kept.sum() / (np.count_nonzero(count) * np.maximum(count, 1))[role]
    return {"turn.advantage": np.where(kept, advantage, 0.0), "turn.mask": kept}
