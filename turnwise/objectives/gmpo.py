"""GMPO: the geometric mean of the tokens' ratios in a span, each clipped in log space first, so that no single token dominates."""

from __future__ import annotations

from typing import Annotated, Literal

import torch

from turnwise.config.options import Help
from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens, ratio_of


@register("gmpo", paper="GMPO, arXiv 2507.20673")
def gmpo(
    tokens: Tokens,
    *,
    clip_low: Annotated[float, Help("log-ratios of tokens with negative advantage are clipped below at − this", low=0)] = 0.4,
    clip_high: Annotated[float, Help("log-ratios of tokens with positive advantage are clipped above at this", low=0)] = 0.4,
    level: Annotated[Literal["turn", "trajectory"], Help("the span of the mean; micro-batches must contain whole spans")] = "turn",
) -> TokenLoss:
    """The geometric mean of a span's token ratios, each clipped in log space before the mean."""
    advantage, log_ratio = tokens.advantage, tokens.log_ratio
    bounded = torch.where(advantage < 0, log_ratio.clamp(min=-clip_low), log_ratio.clamp(max=clip_high))
    span_ratio = ratio_of(tokens.mean_over(level, bounded))
    return TokenLoss(
        -advantage * span_ratio,
        {
            "clip_low": (advantage < 0) & (log_ratio < -clip_low),
            "clip_high": (advantage > 0) & (log_ratio > clip_high),
            "span_ratio": span_ratio,
        },
    )
