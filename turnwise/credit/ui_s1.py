"""UI-S1's credit: how well a turn agrees with the recorded expert, and what follows as long as the policy agrees.

    G_k = s_k + γ · G_{k+1}     if turns k and k + 1 both match the expert; otherwise G_k = s_k        s: column turn.score
    A_k = episode_weight · z(s_k over all turns of the group) + step_weight · z(G_k over the group's turns with the same number k)

z subtracts the mean and divides by the standard deviation + 1e-6. With `least`, a group whose G differ less than this is masked.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, TurnDiscount, deviation, pair, reverse_scan, standardise
from turnwise.data.rollouts import Rollouts

SCORE, MATCH = "turn.score", "turn.match"
EpisodeWeight = Annotated[float, Help("weight of scores compared over all turns of the group", low=0)]
StepWeight = Annotated[float, Help("weight of returns compared at the same turn number", low=0)]
Least = Annotated[float, Help("groups whose returns have a smaller standard deviation are not learned from", low=0)]


@register("ui_s1", paper="UI-S1, arXiv 2509.11543", needs=("group.peers", SCORE, MATCH))
def ui_s1(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 0.5,
    episode_weight: EpisodeWeight = 1.0,
    step_weight: StepWeight = 1.0,
    norm: Norm = "std",
    least: Least = 0.3,
) -> dict[str, Any]:
    """Agreement with an expert, plus the discounted agreement that follows, compared at the same turn number."""
    score, match = np.asarray(r.need(SCORE, "ui_s1"), np.float64), np.asarray(r.need(MATCH, "ui_s1"), np.float64) > 0
    counts, score = np.isfinite(score), np.nan_to_num(score)
    followed = match & np.append(match[1:], False)
    later = reverse_scan(score, gamma * followed, r.trajectory)
    turns = np.flatnonzero(counts)
    step, steps = pair(r.group[turns], r.t[turns])
    groups = len(r.group_labels)
    advantage = np.zeros(len(r))
    advantage[turns] = episode_weight * standardise(score[turns], r.group[turns], groups, norm)
    advantage[turns] += step_weight * standardise(later[turns], step, steps, norm)
    kept = counts & (deviation(later[turns], r.group[turns], groups) >= least)[r.group]
    if r.has("turn.mask"):
        kept = kept & r.column("turn.mask").astype(bool)
    return {"turn.advantage": np.where(kept, advantage, 0.0), "turn.mask": kept, "turn.later_score": later}
