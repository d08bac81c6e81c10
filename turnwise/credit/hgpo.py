"""HGPO: Hierarchy-of-Groups Policy Optimization. The same state with a different recent past is a different prompt.

Level k = 0..K groups the turns of a task whose last k+1 states are equal: level 0 is GiGPO's anchor group, deeper levels are its
finer parts. With G the discounted return of a turn (minus `invalid_penalty` if invalid):

    A_k = (G − mean G) / (population std G + 1e-6)   over the level's group
    A   = Σ w_k A_k / Σ w_k                          over the levels whose group has at least two turns

weights="paper": w_k = (k+1)^α. weights="code": (k+2)^α, over the levels with A_k ≠ 0, with 1e-6 added to the sum: what the public code
computes (it counts levels from one). `episode` adds GRPO's credit as one more level of weight 1; without it there is no
episode term at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.gigpo import step_scores
from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Penalty, TurnDiscount, Weighting, pair, segment_count, standardise
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Bools, Floats, Rollouts


@register(
    "hgpo", paper="He et al. 2026, Hierarchy-of-Groups Policy Optimization, arXiv 2602.22817", parts={"step": None}, needs=("group.peers",)
)
def hgpo(
    r: Rollouts,
    *,
    history: Annotated[int, Help("K: up to how many earlier states must also match", low=0)] = 2,
    alpha: Annotated[float, Help("how fast the weight grows with the number of matching states", low=0)] = 1.0,
    weights: Annotated[Literal["paper", "code"], Help("level weights (k+1)^α, or the public code's (k+2)^α")] = "paper",
    episode: Annotated[bool, Help("add the episode credit as one more level, of weight 1")] = False,
    gamma: TurnDiscount = 0.95,
    norm: Norm = "std",
    weighting: Weighting = "trajectory",
    invalid_penalty: Penalty = 0.0,
) -> Floats:
    """Step credit averaged over groups that share more and more of the recent past; longer shared pasts weigh more."""
    score = step_scores(r, gamma, invalid_penalty)
    total, weight = np.zeros(len(r)), np.zeros(len(r))
    for level, (segment, size) in enumerate(history_groups(r, history)):
        credit = standardise(score, segment, size, norm, ddof=0)
        w = (level + (2 if weights == "code" else 1)) ** alpha
        used = credit != 0 if weights == "code" else segment_count(segment, size)[segment] > 1
        _add(total, weight, w, credit, used)
    if episode:
        credit = episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)
        _add(total, weight, 1.0, credit, credit != 0 if weights == "code" else np.ones(len(r), np.bool_))
    if weights == "code":
        return total / (weight + 1e-6)
    return np.divide(total, weight, out=np.zeros(len(r)), where=weight > 0)


def _add(total: Floats, weight: Floats, w: float, credit: Floats, used: Bools) -> None:
    total += w * np.where(used, credit, 0.0)
    weight += w * used


def history_groups(r: Rollouts, history: int) -> Iterator[tuple[Ints, int]]:
    """The group of each turn for levels 0..history. A turn with fewer earlier states than the level requires is a separate group."""
    state, size = pair(r.group, r.anchor)
    segment = state
    yield segment, size
    for level in range(1, min(history, int(r.t.max())) + 1):
        before = np.concatenate([[0], segment[:-1]])
        deep = r.t >= level
        code = np.empty(len(r), np.int64)
        code[deep], pairs = pair(state[deep], before[deep])
        code[~deep] = pairs + np.arange(int((~deep).sum()))
        segment, size = code, pairs + int((~deep).sum())
        yield segment, size
