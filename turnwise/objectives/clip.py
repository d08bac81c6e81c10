"""PPO's clipped surrogate, per token. Clip-higher, dual clip and a reciprocal lower bound are settings of the same three numbers.

Left out: adaptive KL penalties and early stopping on KL; the first is a coefficient schedule, the second belongs to the loop.
"""

from __future__ import annotations

from typing import Annotated

import torch

from turnwise.config.options import Help
from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens


@register("clip", paper="PPO, arXiv 1707.06347; clip-higher: DAPO, arXiv 2503.14476; dual clip: arXiv 1912.09729")
def clip(
    tokens: Tokens,
    *,
    clip_low: Annotated[float, Help("the ratio is clipped below at 1 − this; LOOP's 1/(1+ε) is clip_low = ε/(1+ε)", low=0, high=1)] = 0.2,
    clip_high: Annotated[float, Help("the ratio is clipped above at 1 + this; DAPO: 0.28", low=0)] = 0.2,
    dual_clip: Annotated[float | None, Help("bound on the ratio if the advantage is negative; 3 in most code bases", low=1)] = None,
) -> TokenLoss:
    """PPO's clipped ratio, per token: no reward for moving beyond the bounds in one batch."""
    advantage, ratio = tokens.advantage, tokens.ratio
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-advantage * ratio, -advantage * bounded)
    metrics = {
        "clip_low": (advantage < 0) & (ratio < 1 - clip_low),
        "clip_high": (advantage > 0) & (ratio > 1 + clip_high),
    }
    if dual_clip is not None:
        worst = (advantage < 0) & (ratio > dual_clip)
        loss = torch.where(worst, -advantage * dual_clip, loss)
        metrics["clip_dual"] = worst
    return TokenLoss(loss, metrics)
