"""SAPO: a smooth gate instead of the hard clip. Gradients fade with the distance of the ratio from 1 instead of stopping."""

from __future__ import annotations

from typing import Annotated

import torch

from turnwise.config.options import Help
from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens


@register("sapo", paper="SAPO, arXiv 2511.20347")
def sapo(
    tokens: Tokens,
    *,
    tau_positive: Annotated[float, Help("sharpness of the gate if the advantage is positive", low=1e-3)] = 1.0,
    tau_negative: Annotated[float, Help("sharpness otherwise; larger values fade faster", low=1e-3)] = 1.05,
) -> TokenLoss:
    """A sigmoid gate on the ratio instead of a clip: full gradient at ratio 1, fading smoothly on both sides."""
    tau = torch.full_like(tokens.advantage, tau_negative).masked_fill(tokens.advantage > 0, tau_positive)
    gate = torch.sigmoid(tau * (tokens.ratio - 1))
    fade = 4 * gate * (1 - gate)  # the gate's slope: 1 at ratio 1, towards 0 far away
    return TokenLoss(-gate * 4 / tau * tokens.advantage, {"gate_slope": fade})
