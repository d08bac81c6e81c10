"""REINFORCE++: no group statistics; the scores are normalised over the whole batch.

    A = (score − batch mean) / (batch std + 1e-6)

The score of a turn is its trajectory's return or, with returns="to_go", the return from this turn on, discounted per turn.
With the usual single reward at the end and γ = 1 the two are the same. weighting="token" lets each token count once in the
statistics, as in the public code.

REINFORCE++-baseline: the group's mean as baseline, the whole batch's standard deviation as scale.

    A(τ) = (R(τ) − group mean) / (batch std of R − group mean + 1e-6)

The credit of an easy task, with nearly equal returns, then stays small instead of being inflated by its own small deviation. The batch mean
of the differences is 0 by construction, so it is not subtracted again: a constant group keeps exactly 0. weighting="token" is the public
code: mean and deviation of the differences over all tokens of the batch; that mean is not 0, because long attempts weigh more.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import (
    EPSILON,
    BatchWeighting,
    Norm,
    Penalty,
    TurnDiscount,
    discounted_returns,
    episode_returns,
    segment_count,
    standardise,
    trajectory_groups,
    whiten,
)
from turnwise.data.rollouts import Floats, Rollouts


@register("reinforce_pp", paper="Hu et al. 2025, REINFORCE++, arXiv 2501.03262")
def reinforce_pp(
    r: Rollouts,
    *,
    returns: Annotated[Literal["episode", "to_go"], Help("a turn's score: its trajectory's return, or the return to go")] = "episode",
    gamma: TurnDiscount = 1.0,
    norm: Norm = "std",
    weighting: BatchWeighting = "trajectory",
    invalid_penalty: Penalty = 0.0,
) -> Floats:
    """A turn's return, normalised over the whole batch instead of its group. `gamma` applies to returns=to_go."""
    if returns == "episode" and weighting != "token":
        batch = np.zeros(len(r.trajectory_labels), np.int64)
        return episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty, group=batch)
    score = discounted_returns(r, gamma) if returns == "to_go" else episode_returns(r)[r.trajectory]
    return batch_normalised(r, score, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)


def batch_normalised(r: Rollouts, score: Floats, *, norm: str, weighting: str, invalid_penalty: float) -> Floats:
    """Scores of turns relative to the whole batch; each trajectory counts once (its turns share its weight), or each turn or
    token does."""
    charge = invalid_penalty * ~r.valid
    batch = np.zeros(len(r), np.int64)
    if weighting == "step":
        return standardise(score - charge, batch, 1, norm)
    if weighting == "token":
        tokens = r.need("tokens", "weighting=token").astype(np.float64)
        return whiten(score - charge, tokens) if norm == "std" else standardise(score - charge, batch, 1, norm, weight=tokens)
    share = 1.0 / segment_count(r.trajectory, len(r.trajectory_labels)).astype(np.float64)
    return standardise(score, batch, 1, norm, weight=share[r.trajectory]) - charge


@register("reinforce_pp_baseline", paper="Hu et al. 2025, REINFORCE++, arXiv 2501.03262", needs=("group.peers",))
def reinforce_pp_baseline(
    r: Rollouts, *, norm: Norm = "std", weighting: BatchWeighting = "trajectory", invalid_penalty: Penalty = 0.0
) -> Floats:
    """A trajectory's return minus its group's mean, divided by the standard deviation over the whole batch."""
    if weighting == "step":
        return _scaled(episode_credit(r, norm="none", weighting="step", invalid_penalty=invalid_penalty), norm)
    centred = standardise(episode_returns(r), trajectory_groups(r), len(r.group_labels), "none")
    if weighting == "token" and norm == "std":
        return batch_normalised(r, centred[r.trajectory], norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)
    return _scaled(centred, norm)[r.trajectory] - invalid_penalty * ~r.valid


def _scaled(centred: Floats, norm: str) -> Floats:
    if norm == "none":
        return centred
    std = float(np.sqrt((centred**2).sum() / max(len(centred) - 1, 1)))
    return centred / (std + EPSILON)
