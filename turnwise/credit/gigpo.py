"""GiGPO: Group-in-Group Policy Optimization. Whole trajectories are compared, and so are the actions taken from the same state.

    A = A_episode + ω · A_step
    A_episode    GRPO's (see grpo.py)
    A_step(i)  = (G_i − mean G) / (std G + 1e-6)   over the anchor group: the turns of the task group that started from the same state
    G_i        = Σ_k γ^k · reward k turns later    (minus `invalid_penalty` for an invalid turn)

An anchor group of one turn gives 0, so with no repeated state this is GRPO. A looping trajectory visits one state many times and can
fill an anchor group by itself. With `once`, each trajectory counts once in it (its visits share its weight), and a group with only one
trajectory gives 0. episode_weight=0 keeps only the step credit, omega=0 only the episode credit: the two ablations of the paper.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.anchor_groups import AnchorRule, Threshold, anchor_groups
from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Penalty, TurnDiscount, Weighting, discounted_returns, pair, segment_count, standardise
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats, Rollouts

Once = Annotated[bool, Help("let each trajectory count once in an anchor group, however often it returns to that state")]
EpisodeWeight = Annotated[float, Help("weight of the episode credit", low=0)]
StepWeight = Annotated[float, Help("weight ω of the step credit", low=0)]


@register(
    "gigpo",
    paper="Feng et al. 2025, Group-in-Group Policy Optimization, arXiv 2505.10978",
    parts={"episode": "episode_weight", "step": "omega"},
    needs=("group.peers",),
)
def gigpo(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 0.95,
    omega: StepWeight = 1.0,
    norm: Norm = "std",
    weighting: Weighting = "trajectory",
    invalid_penalty: Penalty = 0.0,
    anchors: AnchorRule = "exact",
    threshold: Threshold = 0.95,
    once: Once = False,
    episode_weight: EpisodeWeight = 1.0,
) -> Floats:
    """Episode credit plus ω × step credit: a turn's discounted return compared with those of other turns from the same state."""
    episode = episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)
    segment, size = anchor_groups(r, anchors, threshold)
    score = step_scores(r, gamma, invalid_penalty)
    return episode_weight * episode + omega * step_credit(r, score, segment, size, norm=norm, once=once)


def step_scores(r: Rollouts, gamma: float, invalid_penalty: float) -> Floats:
    """The discounted return of each turn, minus the penalty if the turn is invalid."""
    return discounted_returns(r, gamma) - invalid_penalty * ~r.valid


def step_credit(r: Rollouts, score: Floats, segment: Ints, size: int, *, norm: str, once: bool = False, ddof: int = 1) -> Floats:
    """Each turn's score compared with the other turns of its anchor group."""
    weight = visit_weights(r, segment) if once else None
    return standardise(score, segment, size, norm, weight, ddof)


def visit_weights(r: Rollouts, segment: Ints) -> Floats:
    """1 / number of visits of the turn's trajectory to the turn's anchor group: the visits of a trajectory share one vote."""
    visit, visits = pair(r.trajectory, segment)
    return 1.0 / np.asarray(segment_count(visit, visits), np.float64)[visit]
