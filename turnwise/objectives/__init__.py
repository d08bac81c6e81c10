"""Objectives: from log-probabilities and advantages to a loss. Pure torch functions on flat token columns; see docs/objectives.md."""

from turnwise.objectives.loss import Loss, combine, compute
from turnwise.objectives.registry import Correction, TokenLoss, algorithms, corrections, register, register_correction
from turnwise.objectives.tokens import AGGREGATIONS, Tokens, check_split, token_weights
from turnwise.objectives.value import explained_variance, value_loss

__all__ = [
    "Tokens", "TokenLoss", "Correction", "token_weights", "check_split", "AGGREGATIONS",
    "Loss", "compute", "combine", "value_loss", "explained_variance",
    "algorithms", "corrections", "register", "register_correction",
]  # fmt: skip
