"""Importance corrections for data that the learner's policy did not sample.

The engine that sampled a token and the learner that trains on it never agree exactly: different kernels, different precision, sometimes
older weights. w = exp(old_logprob − engine_logprob) corrects for it and multiplies the policy loss as a constant. "truncate" bounds w,
"mask" drops tokens where it is out of bounds. KL and entropy terms are not corrected.

A turn's ratio is the product of its tokens' ratios ("product", the exact one, whose spread grows with length) or their geometric mean
("mean", which treats short and long responses alike).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from turnwise.config.options import Help
from turnwise.objectives.registry import Correction, register_correction
from turnwise.objectives.tokens import Level, Tokens, ratio_of
from turnwise.util.errors import TurnwiseError

LevelOption = Annotated[
    Literal["token", "turn", "trajectory"], Help("the span that has one weight; micro-batches must contain whole spans")
]
SpanOption = Annotated[Literal["product", "mean"], Help("a span's ratio: product of its tokens' ratios, or their geometric mean")]
LowOption = Annotated[float, Help("lower bound of the weight", low=0, high=1)]
HighOption = Annotated[float, Help("upper bound of the weight", low=1)]


def engine_ratio(tokens: Tokens, level: Level = "token", span: str = "product") -> Tensor:
    """The learner's probability of the token (or its span) relative to the engine's. Detached."""
    gap = tokens.old_logprob.detach() - tokens.need("engine_logprob", "an importance correction").detach()
    return ratio_of(tokens.sum_over(level, gap) if span == "product" else tokens.mean_over(level, gap))


@register_correction("truncate", paper="truncated importance sampling: Espeholt et al. 2018 (IMPALA), Yao et al. 2025 (TIS)")
def truncate(
    tokens: Tokens, *, level: LevelOption = "token", span: SpanOption = "product", low: LowOption = 0.0, high: HighOption = 2.0
) -> Correction:
    """The bounded weight: a little bias for a bounded variance."""
    ratio = engine_ratio(tokens, level, span)
    return Correction(ratio.clamp(low, high), {"importance_truncated": (ratio < low) | (ratio > high)})


@register_correction("mask", paper="masked importance sampling; at token level with both bounds: IcePop")
def mask(
    tokens: Tokens, *, level: LevelOption = "token", span: SpanOption = "product", low: LowOption = 0.5, high: HighOption = 2.0
) -> Correction:
    """The weight if it is in bounds, otherwise 0: tokens on which the two policies disagree are not learned from."""
    ratio = engine_ratio(tokens, level, span)
    outside = (ratio < low) | (ratio > high)
    return Correction(torch.where(outside, 0.0, ratio), {"importance_truncated": outside})


def agreeing(old_logprob: Any, engine_logprob: Any, ids: Any = None, low: float = 0.5, high: float = 2.0, span: str = "mean") -> Tensor:
    """True for tokens whose span (`ids`: turns or trajectories of the whole batch; None: each token alone) has a ratio in [low, high].

    The mask for `token_weights(mask=…)`: unlike with the correction "mask", rejected tokens also leave the denominators.
    """
    if span not in ("product", "mean"):
        raise TurnwiseError(f"agreeing: span is 'product' or 'mean', not {span!r}")
    gap = torch.as_tensor(old_logprob).double() - torch.as_tensor(engine_logprob).double()
    if ids is not None:
        _, of_span, sizes = torch.as_tensor(ids).unique(return_inverse=True, return_counts=True)
        total = gap.new_zeros(len(sizes)).index_add(0, of_span, gap)
        gap = (total if span == "product" else total / sizes)[of_span]
    ratio = ratio_of(gap)
    return (ratio >= low) & (ratio <= high)
