"""ArCHer's credit: what a response is worth minus what its state is worth, the smaller one of two critics for each.

    A = min(Q1, Q2) − min(V1, V2)         with `baseline` A − b for each token, and b learns A

Turns that are in the batch for the critics alone (`turn.critic_only`) are masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import unmasked
from turnwise.data.rollouts import Rollouts

CRITIC_ONLY = "turn.critic_only"
VALUES = ("turn.q1", "turn.q2", "turn.v1", "turn.v2")
BASELINE, TARGET = "token.baseline", "token.target_baseline"
Baseline = Annotated[bool, Help("subtract a critic's prediction of the advantage at each token (column token.baseline)")]


@register("archer", paper="ArCHer, arXiv 2402.19446", needs=(CRITIC_ONLY, *VALUES), gives=(TARGET,))
def archer(r: Rollouts, *, baseline: Baseline = False) -> dict[str, Any]:
    """The value of the response minus the value of its state, by the more careful of two critics."""
    q1, q2, v1, v2 = (np.asarray(r.need(name, "archer"), np.float64) for name in VALUES)
    kept = ~(np.asarray(r.need(CRITIC_ONLY, "archer"), np.float64) > 0)
    kept = unmasked(r, kept)
    advantage = np.minimum(q1, q2) - np.minimum(v1, v2)
    if not baseline:
        return {"turn.advantage": np.where(kept, advantage, 0.0), "turn.mask": kept}
    of_turn = np.diff(r.token_offsets)
    goal, learned = np.repeat(advantage, of_turn), np.repeat(kept, of_turn)
    found = {"token.advantage": np.where(learned, goal - np.asarray(r.need(BASELINE, "archer"), np.float64), 0.0)}
    return found | {TARGET: np.where(learned, goal, np.nan), "turn.mask": kept}


def needs_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The column of the baseline, if there is one."""
    return (BASELINE,) if options["baseline"] else ()


archer.needs_of = needs_of  # type: ignore[attr-defined]
