"""CISPO: REINFORCE with a clipped importance weight. The weight is a constant, so no token ever loses its gradient."""

from __future__ import annotations

from typing import Annotated

from turnwise.config.options import Help
from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens


@register("cispo", paper="MiniMax-M1, arXiv 2506.13585")
def cispo(
    tokens: Tokens,
    *,
    ratio_low: Annotated[float, Help("lower bound of the weight; 0: no bound", low=0, high=1)] = 0.0,
    ratio_high: Annotated[float, Help("upper bound of the weight", low=1)] = 5.0,
) -> TokenLoss:
    """REINFORCE weighted by the clipped ratio as a constant: every token keeps its gradient."""
    ratio = tokens.ratio.detach()
    weight = ratio.clamp(ratio_low, ratio_high)
    return TokenLoss(-weight * tokens.advantage * tokens.logprob, {"clip_low": ratio < ratio_low, "clip_high": ratio > ratio_high})
