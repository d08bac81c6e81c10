"""Importance corrections for data that the learner's policy did not sample.

The engine that sampled a token and the learner that trains on it never agree exactly: different kernels, different precision, sometimes
older weights. w = exp(old_logprob − engine_logprob) corrects for it and multiplies the policy loss as a constant. "truncate" bounds w,
"mask" drops tokens where it is out of bounds. KL and entropy terms are not corrected.

A turn's ratio is the product of its tokens' ratios ("product", the exact one, whose spread grows with length) or their geometric mean
("mean", which treats short and long responses alike).

Rejection: spans on which the engine and the learner disagree are not learned from.

A span is a token, a turn (the segment that was generated in one go) or a trajectory. What is measured on it does not grow with its length:

    ratio       exp( mean of log w )            log w = old_logprob − engine_logprob, per token
    k2, k3      mean of (log w)²/2, mean of ( w − log w − 1 )        never negative; 0 if the two agree
    difference  mean of ( p_old − p_engine )    of probabilities: a large ratio of two tiny ones counts little

A rejected span leaves the mini-batch: it is in no denominator, and neither KL nor entropy act on it. Others have weight 1 or, with
`truncate`, each token's w up to that bound. `normalise` divides by the mean weight of the tokens that are kept. All of it is data of the
mini-batch and is computed before it is cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnwise.config.options import Help
from turnwise.objectives.registry import Correction, register_correction
from turnwise.util.errors import TurnwiseError

if TYPE_CHECKING:
    from torch import Tensor

    from turnwise.objectives.tokens import Level, Tokens

Floats = NDArray[np.float64]
Bound = float | None

LevelOption = Annotated[
    Literal["token", "turn", "trajectory"], Help("the span that has one weight; micro-batches must contain whole spans")
]
SpanOption = Annotated[Literal["product", "mean"], Help("a span's ratio: product of its tokens' ratios, or their geometric mean")]
LowOption = Annotated[float, Help("lower bound of the weight", low=0, high=1)]
HighOption = Annotated[float, Help("upper bound of the weight", low=1)]


def engine_ratio(tokens: Tokens, level: Level = "token", span: str = "product") -> Tensor:
    """The learner's probability of the token (or its span) relative to the engine's. Detached."""
    from turnwise.objectives.tokens import ratio_of

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
    import torch

    ratio = engine_ratio(tokens, level, span)
    outside = (ratio < low) | (ratio > high)
    return Correction(torch.where(outside, 0.0, ratio), {"importance_truncated": outside})


@register_correction(
    "reject", paper="geometric and k3 rejection of spans; segment filters by ratio and difference", needs=("token.old_logprob",)
)
class Reject:
    """Removes every span on which engine and learner differ by more than the bounds; others have weight 1 or the truncated weight."""

    def __init__(
        self,
        *,
        over: Annotated[Literal["token", "turn", "trajectory"], Help("the span that is kept or rejected as a whole")] = "turn",
        ratio_low: Annotated[Bound, Help("least geometric mean of a span's weights; none: no bound", low=0)] = None,
        ratio_high: Annotated[Bound, Help("largest geometric mean of a span's weights; none: no bound", low=0)] = None,
        k2_high: Annotated[Bound, Help("largest mean of a span's k2; none: no bound", low=0)] = None,
        k3_high: Annotated[Bound, Help("largest mean of a span's k3; none: no bound", low=0)] = None,
        difference: Annotated[Bound, Help("largest distance of a span's mean difference of probabilities from 0", low=0)] = None,
        truncate: Annotated[Bound, Help("weigh kept tokens by w, at most this; none: weight 1", low=1)] = None,
        normalise: Annotated[bool, Help("divide by the mean weight of the tokens that are kept")] = False,
    ):
        if (ratio_low, ratio_high, k2_high, k3_high, difference, truncate) == (None,) * 6:
            raise TurnwiseError(
                "importance correction 'reject' has no bound: set ratio_low, ratio_high, k2_high, k3_high, difference or truncate in "
                "objective.importance_options"
            )
        self.over, self.truncate, self.normalise = over, truncate, normalise
        self.ratio, self.k2_high, self.k3_high, self.difference = (ratio_low, ratio_high), k2_high, k3_high, difference

    def prepare(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        """Once per mini-batch: the weight of every token, and which are rejected."""
        from turnwise.objectives.tokens import MAX_LOG_RATIO

        counted = np.asarray(columns["weight"]) != 0
        old, engine = (np.where(counted, np.asarray(columns[name], np.float64), 0.0) for name in ("old_logprob", "engine_logprob"))
        log_weight = np.clip(old - engine, -MAX_LOG_RATIO, MAX_LOG_RATIO)
        weight = np.exp(log_weight)
        ids = np.arange(len(old)) if self.over == "token" else np.asarray(columns[self.over])
        _, span = np.unique(ids, return_inverse=True)

        def mean(values: Floats) -> Floats:
            size = np.bincount(span, counted)
            result: Floats = (np.bincount(span, np.where(counted, values, 0.0)) / np.maximum(size, 1))[span]
            return result

        kept = _within(np.exp(mean(log_weight)), *self.ratio) & _within(mean(weight - log_weight - 1), None, self.k3_high)
        kept &= _within(mean(log_weight**2 / 2), None, self.k2_high)
        kept &= _within(np.abs(mean(np.exp(old) - np.exp(engine))), None, self.difference)
        factor = np.where(kept, 1.0 if self.truncate is None else np.minimum(weight, self.truncate), 0.0)
        if self.normalise and (average := factor[counted & kept].mean() if (counted & kept).any() else 0.0) > 0:
            factor = factor / average
        return {"importance_factor": factor, "importance_rejected": ~kept}

    def __call__(self, tokens: Tokens) -> Correction:
        """The weights that were prepared."""
        if "importance_factor" not in tokens.extra:
            raise TurnwiseError("importance correction 'reject' is prepared per mini-batch: put its prepare(columns) into Tokens.extra")
        return Correction(tokens.extra["importance_factor"], {"importance_rejected": tokens.extra["importance_rejected"]})


def _within(values: Floats, low: Bound, high: Bound) -> NDArray[np.bool_]:
    inside = np.ones(len(values), np.bool_)
    inside &= values >= low if low is not None else True
    inside &= values <= high if high is not None else True
    return inside
