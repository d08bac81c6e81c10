"""Clip-Cov: a few random tokens of large covariance between advantage and log-prob are left out of the loss.

A small share of tokens, likely ones with a high advantage, drives the fall of entropy. Clip-Cov takes the gradient of some of them away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch

from turnwise.config.options import Help
from turnwise.objectives.covariance import covariance, share
from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens
from turnwise.util.seeds import derive


@register("clip_cov", paper="Cui et al. 2025, Clip-Cov, arXiv 2505.22617", needs=("token.old_logprob",))
class ClipCov:
    """PPO's clip with wide bounds; a random few of the tokens with a large covariance of advantage and log-prob have no loss."""

    def __init__(
        self,
        *,
        fraction: Annotated[float, Help("share of the mini-batch's tokens that lose their loss, at least one token", low=0, high=1)] = 2e-4,
        cov_low: Annotated[float, Help("only tokens with a covariance above this are chosen from")] = 1.0,
        cov_high: Annotated[float, Help("only tokens with a covariance below this are chosen from")] = 5.0,
        clip_low: Annotated[float, Help("the ratio is clipped below at 1 − this", low=0, high=1)] = 1.0,
        clip_high: Annotated[float, Help("the ratio is clipped above at 1 + this", low=0)] = 1.0,
        seed: Annotated[int, Help("seeds the choice of tokens", low=0)] = 0,
    ):
        self.fraction, self.bounds, self.seed = fraction, (cov_low, cov_high), seed
        self.clip_low, self.clip_high = clip_low, clip_high
        self.draws = 0  # mini-batches so far: each has its own random choice, also after a resume

    def prepare(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        """Once per mini-batch: which tokens are dropped."""
        cov, counted = covariance(columns)
        low, high = self.bounds
        candidates = np.flatnonzero(counted & (cov > low) & (cov < high))
        order = np.random.default_rng(derive(self.seed, "clip_cov", self.draws)).permutation(len(candidates))
        self.draws += 1
        dropped = np.zeros(len(cov), np.bool_)
        dropped[candidates[order[: share(self.fraction, int(counted.sum()))]]] = True
        return {"cov": cov, "cov_dropped": dropped}

    def __call__(self, tokens: Tokens) -> TokenLoss:
        """One loss per token, 0 for dropped ones."""
        advantage, ratio, dropped = tokens.advantage, tokens.ratio, tokens.extra["cov_dropped"]
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - self.clip_low, 1 + self.clip_high))
        metrics = {
            "clip_low": (advantage < 0) & (ratio < 1 - self.clip_low),
            "clip_high": (advantage > 0) & (ratio > 1 + self.clip_high),
            "cov": tokens.extra["cov"],
            "cov_dropped": dropped,
        }
        return TokenLoss(torch.where(dropped, 0.0, loss), metrics)

    def state(self) -> dict[str, Any]:
        return {"draws": self.draws}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.draws = int(state["draws"])
