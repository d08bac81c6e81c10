"""SERL's objective: the clipped ratio, with credit that hindsight distributes over the tokens of an action, and a pull towards hindsight.

    w  = clip(exp(sign(A) · D), 1 − bound, 1 + bound)        D = hindsight's log-prob − the policy's, no gradient
    A' = A · ((1 − λ) + λ · w) on tokens of the action, A on the others

The pull is the forward KL divergence KL(hindsight ‖ policy) on tokens of the action, times λ. Its gradient is estimated from the sampled
tokens alone: −r · ∇ log π, with r the probability under hindsight over the one that the token was drawn with, at most `most`.
"""

from __future__ import annotations

from typing import Annotated

import torch

from turnwise.config.options import Help
from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens, ratio_of


@register("serl", paper="SERL, arXiv 2605.19447", needs=("token.hindsight_logprob", "token.action", "turn.hindsight_share"))
def serl(
    tokens: Tokens,
    *,
    bound: Annotated[float, Help("weights are between 1 − this and 1 + this", low=0, high=1)] = 0.2,
    distil: Annotated[float, Help("weight of the distillation term, times λ", low=0)] = 1.0,
    most: Annotated[float, Help("largest importance ratio of the distillation term", low=0)] = 2.0,
    clip_low: Annotated[float, Help("the ratio is clipped below at 1 − this", low=0, high=1)] = 0.2,
    clip_high: Annotated[float, Help("the ratio is clipped above at 1 + this", low=0)] = 0.2,
) -> TokenLoss:
    """Clipped policy gradient; on tokens of an action, credit is weighted by what a copy of the policy says that knows the feedback."""
    hindsight, share = tokens.extra["hindsight_logprob"], tokens.extra["hindsight_share"]
    action = tokens.extra["action"].bool()
    gap = hindsight - tokens.logprob.detach()
    weight = ratio_of(tokens.advantage.sign() * gap).clamp(1 - bound, 1 + bound)
    advantage = tokens.advantage * torch.where(action, (1 - share) + share * weight, 1.0)
    bounded = tokens.ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-advantage * tokens.ratio, -advantage * bounded)
    metrics = {
        "clip_low": (advantage < 0) & (tokens.ratio < 1 - clip_low),
        "clip_high": (advantage > 0) & (tokens.ratio > 1 + clip_high),
        "hindsight_weight": torch.where(action, weight, 1.0),
        "hindsight_gap": torch.where(action, gap, 0.0),
    }
    if distil > 0:
        drawn = ratio_of(hindsight - tokens.old_logprob).clamp(max=most)
        loss = loss - torch.where(action, distil * share * drawn * tokens.logprob, 0.0)
    return TokenLoss(loss, metrics)
