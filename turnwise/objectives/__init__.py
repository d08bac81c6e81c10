"""Objectives: from log-probabilities and advantages to a loss. Pure torch functions on flat token columns; see docs/guides/objectives.md.

Registering one needs no torch (`registry.py`); whatever computes is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from turnwise.objectives.registry import Correction, TokenLoss, algorithms, corrections, register, register_correction
from turnwise.util.errors import need_training

if TYPE_CHECKING:
    from turnwise.objectives.loss import Loss, combine, compute
    from turnwise.objectives.tokens import AGGREGATIONS, Tokens, check_split, token_weights
    from turnwise.objectives.value import explained_variance, value_loss

__all__ = [
    "Tokens", "TokenLoss", "Correction", "token_weights", "check_split", "AGGREGATIONS",
    "Loss", "compute", "combine", "value_loss", "explained_variance",
    "algorithms", "corrections", "register", "register_correction",
]  # fmt: skip

_LATER = {
    **dict.fromkeys(("Loss", "combine", "compute"), "loss"),
    **dict.fromkeys(("AGGREGATIONS", "Tokens", "check_split", "token_weights"), "tokens"),
    **dict.fromkeys(("explained_variance", "value_loss"), "value"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need_training(f"turnwise.objectives.{name}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
