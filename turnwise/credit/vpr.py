"""VPR: several candidate responses at each visited state, scored by an oracle, compared with each other.

    B_j = score_j − mean score                  over the K candidates of the state; with norm="std" divided by their standard deviation
    A_j = (B_j − mean B) / (std B + 1e-6)       over all candidates of the batch that count; all deviations are of the population

A state whose candidates all have the same score teaches nothing: its turns get 0 and are masked. `turn.choice` is the number of the state
that a turn is a candidate of, `turn.score` what the oracle said; the plan `vpr` notes both. Turns without a score are masked too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import is_constant, standardise, unmasked
from turnwise.data.anchors import dense
from turnwise.data.rollouts import Rollouts


@register("vpr", paper="VPR, arXiv 2605.10325", needs=("turn.choice", "turn.score"))
def vpr(
    r: Rollouts,
    *,
    norm: Annotated[Literal["none", "std"], Help("inside a state: do not divide, or divide by the standard deviation")] = "none",
    whiten: Annotated[bool, Help("subtract the mean and divide by the standard deviation over all candidates that count")] = True,
) -> dict[str, Any]:
    """An oracle's score of a turn compared with those of other responses to the same prompt, whitened over the batch."""
    choice, score = np.asarray(r.need("turn.choice", "vpr")), np.asarray(r.need("turn.score", "vpr"), np.float64)
    counts = np.isfinite(score) & np.isfinite(choice)
    advantage, rows = np.zeros(len(r)), np.flatnonzero(counts)
    if len(rows):
        distinct, state = dense(choice[rows].astype(np.int64))
        size = len(distinct)
        relative = standardise(score[rows], state, size, norm, ddof=0)
        live = ~is_constant(score[rows], state, size)[state]
        counts[rows] = live
        chosen = relative[live]
        advantage[rows[live]] = standardise(chosen, np.zeros(len(chosen), np.int64), 1, "std", ddof=0) if whiten else chosen
    return {"turn.advantage": advantage, "turn.mask": unmasked(r, counts)}
