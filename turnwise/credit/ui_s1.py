"""UI-S1's credit: how well a turn agrees with the recorded expert, and what follows as long as the policy agrees.

    G_k = s_k + γ · G_{k+1}     if turns k and k + 1 both match the expert; otherwise G_k = s_k        s: column turn.score
    A_k = episode_weight · z(s_k over all turns of the group) + step_weight · z(G_k over the group's turns with the same number k)

z subtracts the mean and divides by the sample standard deviation + 1e-6. A group is masked unless the population standard deviation of
its attempts' G_0, at their first turns, is above `least`.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, TurnDiscount, deviation, pair, reverse_scan, segment_count, standardise, unmasked
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Bools, Floats, Rollouts

SCORE, MATCH = "turn.score", "turn.match"
EpisodeWeight = Annotated[float, Help("weight of scores compared over all turns of the group", low=0)]
StepWeight = Annotated[float, Help("weight of returns compared at the same turn number", low=0)]
Least = Annotated[float, Help("a group is learned from if its attempts' returns deviate by more than this; 0: every group", low=0)]


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
    kept = unmasked(r, counts & contrasted(r, np.flatnonzero(counts & (r.t == 0)), later, least)[r.group])
    return {"turn.advantage": np.where(kept, advantage, 0.0), "turn.mask": kept, "turn.later_score": later}


def contrasted(r: Rollouts, first: Ints, later: Floats, least: float) -> Bools:
    """For each group whether it is learned from: its attempts' G at their first turns differ enough, or it has one attempt alone."""
    groups = len(r.group_labels)
    spread, attempts = deviation(later[first], r.group[first], groups, ddof=0), segment_count(r.group[first], groups)
    return np.asarray((spread > least) | (attempts == 1) | (least == 0))
