"""A²TGPO's objective: one ratio per turn, clipped within a range that is wider or narrower by the turn's own scale."""

from __future__ import annotations

from typing import Annotated, Literal

import torch

from turnwise.config.options import Help
from turnwise.objectives.gspo import MAX_LOG_SPAN_RATIO
from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens, ratio_of


@register("a2tgpo", paper="A²TGPO, arXiv 2605.06200", needs=("turn.clip_scale",))
def a2tgpo(
    tokens: Tokens,
    *,
    clip_low: Annotated[float, Help("a turn's ratio is clipped below at 1 − its scale × this", low=0, high=1)] = 3e-3,
    clip_high: Annotated[float, Help("a turn's ratio is clipped above at 1 + its scale × this", low=0)] = 4e-3,
    level: Annotated[Literal["turn", "trajectory"], Help("the span that has one ratio; micro-batches must contain whole spans")] = "turn",
) -> TokenLoss:
    """One ratio and one clipping decision for each turn, within the clip range that credit gave to the turn."""
    advantage, scale = tokens.advantage, tokens.extra["clip_scale"]
    span = tokens.mean_over(level, tokens.log_ratio.detach())
    ratio = ratio_of(tokens.logprob - tokens.logprob.detach() + span, high=MAX_LOG_SPAN_RATIO)
    low, high = 1 - scale * clip_low, 1 + scale * clip_high
    loss = torch.maximum(-advantage * ratio, -advantage * torch.minimum(torch.maximum(ratio, low), high))
    metrics = {
        "clip_low": (advantage < 0) & (ratio < low),
        "clip_high": (advantage > 0) & (ratio > high),
        "span_ratio": ratio,
        "clip_scale": scale,
    }
    return TokenLoss(loss, metrics)
