"""Clip-Cov as a method: the objective `clip_cov`, a mean over tokens and no KL."""

from __future__ import annotations

from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.methods.authors import kl_loss
from turnwise.methods.registry import Brings, method


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
