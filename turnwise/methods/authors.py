"""What code bases that several methods come from take for settings that all methods share, and options of methods for such settings."""

from __future__ import annotations

from typing import Annotated, Any

from turnwise.config.options import Help

# verl-agent's scripts for ALFWorld and WebShop, on which the code of GiGPO, HiPER, ReBel, T2PO and others is built
VERL_AGENT: dict[str, Any] = {
    "objective.name": "clip",
    "objective.clip_low": 0.2,
    "objective.clip_high": 0.2,
    "objective.dual_clip": 3.0,
    "objective.aggregation": "token",
    "objective.kl": "loss",
    "objective.kl_coef": 0.01,
    "objective.entropy_coef": 0.001,
}
# RAGEN's base.yaml
RAGEN: dict[str, Any] = {
    "objective.aggregation": "token",
    "objective.kl": "off",
    "objective.entropy_coef": 0.001,
    "learner.value.clip": 0.5,
}

RecipeDiscount = Annotated[float | None, Help("discount per turn; none: the recipe's", low=0, high=1)]
KlCoef = Annotated[float | None, Help("weight of a KL loss; none: the recipe's KL term", low=0)]
ValueClip = Annotated[float | None, Help("how far a value may move in one iteration; none: the recipe's", low=0)]


def kl_loss(coefficient: float | None) -> dict[str, Any]:
    """Settings of a KL loss with this coefficient; 0: no KL term, None: the recipe's."""
    if coefficient is None:
        return {}
    return {"objective.kl": "loss", "objective.kl_coef": coefficient} if coefficient else {"objective.kl": "off"}
