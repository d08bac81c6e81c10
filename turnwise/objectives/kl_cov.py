"""KL-Cov: the tokens with the largest covariance of advantage and log-prob pay for moving away from the old policy; nothing is clipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch

from turnwise.config.options import Help
from turnwise.objectives.covariance import covariance, share
from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens


@register("kl_cov", paper="Cui et al. 2025, KL-Cov, arXiv 2505.22617", needs=("token.old_logprob",))
class KlCov:
    """Advantage times ratio, unclipped; the few tokens with the largest covariance of advantage and log-prob also pay their log-ratio."""

    def __init__(
        self,
        *,
        fraction: Annotated[float, Help("share of the mini-batch's tokens that pay, at least one token", low=0, high=1)] = 0.002,
        coefficient: Annotated[float, Help("what a chosen token pays per unit of its absolute log-ratio", low=0)] = 1.0,
    ):
        self.fraction, self.coefficient = fraction, coefficient

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
        held = tokens.extra["cov_held"]
        paid = torch.where(held, self.coefficient * tokens.log_ratio.abs(), 0.0)
        return TokenLoss(-tokens.advantage * tokens.ratio + paid, {"cov": tokens.extra["cov"], "cov_held": held})
