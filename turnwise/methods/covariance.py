"""Clip-Cov and KL-Cov: the tokens with a large covariance of advantage and log-prob are held back.

    cov(token) = (A − mean A) · (old log-prob − mean old log-prob)        means over the tokens of the mini-batch that count

A small share of tokens, likely ones with a high advantage, drives the fall of entropy. Clip-Cov takes the gradient of a random few of them
away. KL-Cov lets those with the largest covariance pay for moving away from the old policy, and clips nothing. The covariance is computed
once per mini-batch, before it is split, so the choice does not depend on the size of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from turnwise.config.options import Help
from turnwise.methods.registry import Brings, kl_loss, method
from turnwise.objectives import registry as objectives
from turnwise.objectives.registry import TokenLoss
from turnwise.util.seeds import derive

if TYPE_CHECKING:
    from turnwise.objectives.tokens import Tokens

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def covariance(columns: Mapping[str, Any]) -> tuple[Floats, Mask]:
    """The covariance of every token of a mini-batch, and which tokens count. A constant column gives exactly 0."""
    counted = np.asarray(columns["weight"]) != 0
    return _centred(columns["advantage"], counted) * _centred(columns["old_logprob"], counted), counted


def share(fraction: float, tokens: int) -> int:
    """A fraction of a number of tokens: at least one, unless the fraction is 0."""
    return min(tokens, max(1, int(fraction * tokens))) if fraction > 0 else 0


def _centred(column: Any, counted: Mask) -> Floats:
    values = np.where(counted, np.asarray(column, np.float64), 0.0)  # what does not count may hold anything
    if not counted.any():
        return values
    values = values - values[counted.argmax()]  # equal values then differ from their mean by exactly 0
    centred: Floats = values - values[counted].mean()
    return centred


@objectives.register("clip_cov", paper="Cui et al. 2025, Clip-Cov, arXiv 2505.22617", needs=("token.old_logprob",))
@dataclass(kw_only=True, eq=False)
class ClipCov:
    """PPO's clip with wide bounds; a random few of the tokens with a large covariance of advantage and log-prob have no loss."""

    fraction: Annotated[float, Help("share of the mini-batch's tokens that lose their loss, at least one token", low=0, high=1)] = 2e-4
    cov_low: Annotated[float, Help("only tokens with a covariance above this are chosen from")] = 1.0
    cov_high: Annotated[float, Help("only tokens with a covariance below this are chosen from")] = 5.0
    clip_low: Annotated[float, Help("the ratio is clipped below at 1 − this", low=0, high=1)] = 1.0
    clip_high: Annotated[float, Help("the ratio is clipped above at 1 + this", low=0)] = 1.0
    seed: Annotated[int, Help("seeds the choice of tokens", low=0)] = 0
    draws: int = field(default=0, init=False)  # mini-batches so far: each has its own random choice, also after a resume

    def prepare(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        """Once per mini-batch: which tokens are dropped."""
        cov, counted = covariance(columns)
        candidates = np.flatnonzero(counted & (cov > self.cov_low) & (cov < self.cov_high))
        order = np.random.default_rng(derive(self.seed, "clip_cov", self.draws)).permutation(len(candidates))
        self.draws += 1
        dropped = np.zeros(len(cov), np.bool_)
        dropped[candidates[order[: share(self.fraction, int(counted.sum()))]]] = True
        return {"cov": cov, "cov_dropped": dropped}

    def __call__(self, tokens: Tokens) -> TokenLoss:
        """One loss per token, 0 for dropped ones."""
        import torch

        from turnwise.objectives.clip import clip

        loss, metrics = clip(tokens, clip_low=self.clip_low, clip_high=self.clip_high)
        dropped = tokens.extra["cov_dropped"]
        return TokenLoss(torch.where(dropped, 0.0, loss), {**metrics, "cov": tokens.extra["cov"], "cov_dropped": dropped})

    def state(self) -> dict[str, Any]:
        return {"draws": self.draws}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.draws = int(state["draws"])


@objectives.register("kl_cov", paper="Cui et al. 2025, KL-Cov, arXiv 2505.22617", needs=("token.old_logprob",))
@dataclass(kw_only=True, eq=False)
class KlCov:
    """Advantage times ratio, unclipped; the few tokens with the largest covariance of advantage and log-prob also pay their log-ratio."""

    fraction: Annotated[float, Help("share of the mini-batch's tokens that pay, at least one token", low=0, high=1)] = 0.002
    coefficient: Annotated[float, Help("what a chosen token pays per unit of its absolute log-ratio", low=0)] = 1.0

    def prepare(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        """Once per mini-batch: which tokens pay. Of equal covariances the earlier tokens are taken."""
        cov, counted = covariance(columns)
        own = cov[counted]
        count = share(self.fraction, len(own))
        chosen = np.zeros(len(own), np.bool_)
        if count:
            bound = np.partition(own, len(own) - count)[len(own) - count]
            chosen = own > bound
            chosen[np.flatnonzero(own == bound)[: count - int(chosen.sum())]] = True
        held = np.zeros(len(cov), np.bool_)
        held[counted] = chosen
        return {"cov": cov, "cov_held": held}

    def __call__(self, tokens: Tokens) -> TokenLoss:
        """One loss per token."""
        import torch

        held = tokens.extra["cov_held"]
        paid = torch.where(held, self.coefficient * tokens.log_ratio.abs(), 0.0)
        return TokenLoss(-tokens.advantage * tokens.ratio + paid, {"cov": tokens.extra["cov"], "cov_held": held})


@method(
    "clip_cov",
    paper="Cui et al. 2025, Clip-Cov, arXiv 2505.22617",
    changes="objective",
    costs="nothing; one pass for old log-probs where a batch is used for a single step",
    evidence="code",
)
def clip_cov(*, fraction: Annotated[float, Help("share of tokens that lose their loss", low=0, high=1)] = 2e-4) -> dict[str, Any]:
    """A few random tokens whose likelihood and advantage are both high are left out of the loss, so that entropy falls more slowly."""
    own = {"objective.name": "clip_cov", "objective.fraction": fraction, "objective.clip_low": 1.0, "objective.clip_high": 1.0}
    return Brings(own, {"objective.aggregation": "token", "objective.entropy_coef": 0.0} | kl_loss(0.0))


@method(
    "kl_cov",
    paper="Cui et al. 2025, KL-Cov, arXiv 2505.22617",
    changes="objective",
    costs="nothing; one pass for old log-probs where a batch is used for a single step",
    evidence="code",
)
def kl_cov(
    *,
    fraction: Annotated[float, Help("share of tokens that pay for moving", low=0, high=1)] = 0.002,
    coefficient: Annotated[float, Help("what they pay per unit of their absolute log-ratio", low=0)] = 1.0,
) -> dict[str, Any]:
    """The tokens whose likelihood and advantage are highest together pay for moving away from the old policy; nothing is clipped."""
    settings = {"objective.name": "kl_cov", "objective.fraction": fraction, "objective.coefficient": coefficient}
    return Brings(settings, {"objective.aggregation": "token", "objective.entropy_coef": 0.0} | kl_loss(0.0))
