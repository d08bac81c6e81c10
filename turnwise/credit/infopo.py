"""InfoPO: a turn was informative if its feedback changes what the agent does next. Used where outcomes do not discriminate.

    x_k   = I_k / |a_k|      per token of turn k; I_k: column turn.feedback_gain
    A_int = (x − mean x) / (std x + 1e-6)       over the tokens of the group whose x is not 0; 0 where x is 0
    A_out                                       GRPO's
    scale = min(1, max(std A_out, 1) / std A_int)          both over all tokens of the batch
    gate  = σ(−σ_g / T)                         σ_g: the sample deviation of the group's returns; 1/2 where all are equal
    A     = A_out + β · gate · scale · A_int

All tokens of a turn have the same numbers, so statistics over tokens are statistics over turns that count as often as they have tokens.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import episode_returns, relative, segment_count, segment_sum, standardise, trajectory_groups
from turnwise.data.rollouts import Floats, Rollouts

GAIN = "turn.feedback_gain"


@register("infopo", paper="InfoPO, github.com/kfq20/InfoPO", needs=("group.peers", GAIN))
def infopo(
    r: Rollouts,
    *,
    beta: Annotated[float, Help("weight of the information part", low=0)] = 0.5,
    temperature: Annotated[float, Help("T of the gate: deviation of returns at which information fades out", low=1e-6)] = 0.05,
) -> Floats:
    """Outcome credit plus, in groups whose outcomes are alike, credit for feedback that changed the next action."""
    tokens = np.asarray(r.need("tokens", "infopo"), np.float64)
    outcome = episode_credit(r, norm="std", weighting="trajectory", invalid_penalty=0.0)
    share = np.asarray(r.column(GAIN), np.float64) / np.maximum(tokens, 1.0)
    informed = (share != 0) & (tokens > 0)
    own = np.zeros(len(r))
    own[informed] = standardise(share[informed], r.group[informed], len(r.group_labels), "std", tokens[informed])
    target, size = max(_deviation(outcome, tokens), 1.0), _deviation(own, tokens)
    scale = min(1.0, target / size) if size > 0 else 1.0
    return outcome + beta * scale * _gate(r, temperature) * own


def _deviation(values: Floats, tokens: Floats) -> float:
    """The sample deviation of a column of turns over all tokens of the batch."""
    count = tokens.sum()
    mean = float((tokens * values).sum() / max(count, 1.0))
    return float(np.sqrt((tokens * (values - mean) ** 2).sum() / max(count - 1.0, 1.0)))


def _gate(r: Rollouts, temperature: float) -> Floats:
    """Between 1/2, where all returns of a turn's group are equal, and 0."""
    group, size = trajectory_groups(r), len(r.group_labels)
    apart = relative(episode_returns(r), group, size)
    count = segment_count(group, size)
    centred = apart - (segment_sum(apart, group, size) / np.maximum(count, 1))[group]
    deviation = np.sqrt(segment_sum(centred**2, group, size) / np.maximum(count - 1, 1))
    gate: Floats = 0.5 * (1.0 - np.tanh(deviation / (2 * temperature)))  # the logistic of −deviation / T, which cannot overflow
    return gate[r.group]
