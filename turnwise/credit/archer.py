"""ArCHer's credit: what a response is worth minus what its state is worth, the smaller one of two critics for each.

    A = min(Q1, Q2) − min(V1, V2)

Turns that are in the batch for the critics alone (`turn.critic_only`) are masked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from turnwise.credit.registry import register
from turnwise.data.rollouts import Rollouts

CRITIC_ONLY = "turn.critic_only"
VALUES = ("turn.q1", "turn.q2", "turn.v1", "turn.v2")


@register("archer", paper="ArCHer, arXiv 2402.19446", needs=(CRITIC_ONLY, *VALUES))
def archer(r: Rollouts) -> dict[str, Any]:
    """The value of the response minus the value of its state, by the more careful of two critics."""
    q1, q2, v1, v2 = (np.asarray(r.need(name, "archer"), np.float64) for name in VALUES)
    kept = ~(np.asarray(r.need(CRITIC_ONLY, "archer"), np.float64) > 0)
    if r.has("turn.mask"):
        kept = kept & r.column("turn.mask").astype(bool)
    return {"turn.advantage": np.where(kept, np.minimum(q1, q2) - np.minimum(v1, v2), 0.0), "turn.mask": kept}
