"""KL-Cov as a method: the objective `kl_cov`, a mean over tokens and no KL to a reference."""

from __future__ import annotations

from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.methods.authors import kl_loss
from turnwise.methods.registry import Brings, method


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
