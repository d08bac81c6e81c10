"""Losses of single tokens.

clip        PPO's clipped surrogate. Clip-higher, dual clip and a reciprocal lower bound are settings of the same three numbers. Left out:
            adaptive KL penalties and early stopping on KL; the first is a coefficient schedule, the second belongs to the loop.
cispo       REINFORCE with a clipped importance weight. The weight is a constant, so no token ever loses its gradient.
sapo        A smooth gate instead of the hard clip. Gradients fade with the distance of the ratio from 1 instead of stopping.
reinforce   Plain policy gradient: no ratio, no bound. Right when every batch is used for one update; the yardstick for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from turnwise.config.options import Help
from turnwise.objectives.registry import TokenLoss, register

if TYPE_CHECKING:
    from torch import Tensor

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
    return TokenLoss(*clipped(tokens.advantage, tokens.ratio, 1 - clip_low, 1 + clip_high, dual_clip))


def clipped(advantage: Tensor, ratio: Tensor, low: float, high: float, dual: float | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's loss of each ratio, and where which bound holds; `dual` bounds the ratio where the advantage is negative."""
    import torch

    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(low, high))
    metrics = {"clip_low": (advantage < 0) & (ratio < low), "clip_high": (advantage > 0) & (ratio > high)}
    if dual is not None:
        metrics["clip_dual"] = (advantage < 0) & (ratio > dual)
        loss = torch.where(metrics["clip_dual"], -advantage * dual, loss)
    return loss, metrics


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


@register("sapo", paper="SAPO, arXiv 2511.20347")
def sapo(
    tokens: Tokens,
    *,
    tau_positive: Annotated[float, Help("sharpness of the gate if the advantage is positive", low=1e-3)] = 1.0,
    tau_negative: Annotated[float, Help("sharpness otherwise; larger values fade faster", low=1e-3)] = 1.05,
) -> TokenLoss:
    """A sigmoid gate on the ratio instead of a clip: full gradient at ratio 1, fading smoothly on both sides."""
    import torch

    tau = torch.full_like(tokens.advantage, tau_negative).masked_fill(tokens.advantage > 0, tau_positive)
    gate = torch.sigmoid(tau * (tokens.ratio - 1))
    fade = 4 * gate * (1 - gate)  # the gate's slope: 1 at ratio 1, towards 0 far away
    return TokenLoss(-gate * 4 / tau * tokens.advantage, {"gate_slope": fade})


@register("reinforce", paper="Williams 1992; as GPG, arXiv 2504.02546")
def reinforce(tokens: Tokens) -> TokenLoss:
    """Advantage times log-probability, nothing else; for data that the current policy has just sampled."""
    return TokenLoss(-tokens.advantage * tokens.logprob, {})
