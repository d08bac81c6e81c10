"""T-STAR's loss: the clipped ratio, and a preference between two steps where attempts diverge.

    pair loss = −log σ(β · (log-ratio of the better step − log-ratio of the worse step))       log-ratio = Σ log π − log π_ref

`turn.preference` is minus its derivative by the log-prob of a turn's tokens, λ · β · σ(−β · difference), with a minus for the worse step
and 0 for all other turns; the signal `t_star` computes it under the weights that sampled. Each token's loss is then its clipped loss minus
preference × log-prob: the gradient of the pair loss at those weights. Like every loss it is weighted by the aggregation.
"""

from __future__ import annotations

from typing import Annotated

from turnwise.config.options import Help
from turnwise.objectives.clip import clip
from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens


@register("t_star", paper="T-STAR, arXiv 2604.07165", needs=("turn.preference",))
def t_star(
    tokens: Tokens,
    *,
    clip_low: Annotated[float, Help("the ratio is clipped below at 1 − this", low=0, high=1)] = 0.2,
    clip_high: Annotated[float, Help("the ratio is clipped above at 1 + this", low=0)] = 0.2,
) -> TokenLoss:
    """PPO's clipped ratio, plus the gradient of a Bradley-Terry loss on pairs of steps where attempts diverge."""
    loss, metrics = clip(tokens, clip_low=clip_low, clip_high=clip_high)
    preference = tokens.need("preference", "t_star")
    return TokenLoss(loss - preference * tokens.logprob, {**metrics, "preferred": preference > 0, "dispreferred": preference < 0})
