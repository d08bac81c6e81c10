"""AEPO's clip: above the upper bound a token keeps a gradient, of the size that it has at the bound.

    upper bound = (1 + ε_high) · ρ / sg(ρ)        its value is 1 + ε_high, its gradient that of (1 + ε_high) · log π

PPO drops the gradient of tokens whose probability has grown beyond the bound. Many of them are tokens of high entropy, at which the policy
explores. The lower bound and the dual clip are PPO's.
"""

from __future__ import annotations

from typing import Annotated

import torch

from turnwise.config.options import Help
from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens


@register("aepo", paper="Dong et al. 2025, AEPO, arXiv 2510.14545")
def aepo(
    tokens: Tokens,
    *,
    clip_low: Annotated[float, Help("the ratio is clipped below at 1 − this", low=0, high=1)] = 0.2,
    clip_high: Annotated[float, Help("the ratio is bounded above at 1 + this, and keeps its gradient", low=0)] = 0.2,
    dual_clip: Annotated[float | None, Help("bound on the ratio if the advantage is negative", low=1)] = None,
) -> TokenLoss:
    """PPO's clipped ratio whose upper bound stops the value and not the gradient."""
    advantage, ratio = tokens.advantage, tokens.ratio
    above = ratio > 1 + clip_high
    bounded = torch.where(above, (1 + clip_high) / ratio.detach() * ratio, ratio.clamp(min=1 - clip_low))
    loss = torch.maximum(-advantage * ratio, -advantage * bounded)
    metrics = {"clip_low": (advantage < 0) & (ratio < 1 - clip_low), "clip_high": (advantage > 0) & above}
    if dual_clip is not None:
        worst = (advantage < 0) & (ratio > dual_clip)
        loss = torch.where(worst, -advantage * dual_clip, loss)
        metrics["clip_dual"] = worst
    return TokenLoss(loss, metrics)
