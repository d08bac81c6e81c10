"""Losses of spans: one ratio per turn (or trajectory), the geometric mean of its tokens' ratios.

gspo   The span's ratio decides the clipping. It is a constant for autograd and each token carries the gradient of its own
       log-probability, so advantages may differ inside a span. With one advantage per span and "turn" weights this has the gradient of
       the sequence form.
gmpo   Each token's ratio is clipped in log space before the mean, so that no single token dominates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from turnwise.config.options import Help
from turnwise.objectives.clip import clipped
from turnwise.objectives.registry import TokenLoss, register

if TYPE_CHECKING:
    from turnwise.objectives.tokens import Tokens

MAX_LOG_SPAN_RATIO = 10.0


@register("gspo", paper="GSPO, arXiv 2507.18071")
def gspo(
    tokens: Tokens,
    *,
    clip_low: Annotated[float, Help("the span's ratio is clipped below at 1 − this", low=0, high=1)] = 3e-4,
    clip_high: Annotated[float, Help("the span's ratio is clipped above at 1 + this", low=0)] = 4e-4,
    level: Annotated[Literal["turn", "trajectory"], Help("the span that has one ratio; micro-batches must contain whole spans")] = "turn",
) -> TokenLoss:
    """One ratio and one clipping decision for a whole turn or trajectory, the geometric mean of its tokens' ratios."""
    from turnwise.objectives.tokens import ratio_of

    span_log_ratio = tokens.mean_over(level, tokens.log_ratio.detach())
    straight_through = tokens.logprob - tokens.logprob.detach() + span_log_ratio
    ratio = ratio_of(straight_through, high=MAX_LOG_SPAN_RATIO)
    loss, metrics = clipped(tokens.advantage, ratio, 1 - clip_low, 1 + clip_high)
    return TokenLoss(loss, metrics | {"span_ratio": ratio})


@register("gmpo", paper="GMPO, arXiv 2507.20673")
def gmpo(
    tokens: Tokens,
    *,
    clip_low: Annotated[float, Help("log-ratios of tokens with negative advantage are clipped below at − this", low=0)] = 0.4,
    clip_high: Annotated[float, Help("log-ratios of tokens with positive advantage are clipped above at this", low=0)] = 0.4,
    level: Annotated[Literal["turn", "trajectory"], Help("the span of the mean; micro-batches must contain whole spans")] = "turn",
) -> TokenLoss:
    """The geometric mean of a span's token ratios, each clipped in log space before the mean."""
    import torch

    from turnwise.objectives.tokens import ratio_of

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
