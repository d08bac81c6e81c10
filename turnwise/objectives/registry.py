"""Objectives by name. A new one is a new file in this folder, or your own function.

An objective is a function from `Tokens` to one loss per token:

    @register("my_objective", paper="…")
    def my_objective(tokens: Tokens, *, bound: Annotated[float, Help("what it does", low=0)] = 0.2) -> TokenLoss:
        '''One sentence that users see in lists.'''
        return TokenLoss(-tokens.advantage * tokens.ratio.clamp(max=1 + bound), {"bounded": tokens.ratio > 1 + bound})

It never sums or averages over the batch and never uses weights, so it cannot depend on how the batch was split. An option named `level`
("token", "turn", "trajectory") names the span over which it averages, and therefore the span that a micro-batch must contain completely.
Statistics of the whole batch are data, like the weights: compute them before the split and pass them as a column of `Tokens.extra`.

This module needs no torch, and a file with objectives imports it inside its functions: names and options are known without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from turnwise.config.kinds import IMPORTANCE, OBJECTIVE
from turnwise.config.options import Registry
from turnwise.config.plugins import import_folder

if TYPE_CHECKING:
    from torch import Tensor


class TokenLoss(NamedTuple):
    """The result of an objective: one loss per token, and columns (numbers or booleans) whose batch means are logged."""

    loss: Tensor
    metrics: Mapping[str, Tensor]


class Correction(NamedTuple):
    """The result of an importance correction: a factor for every token's policy loss, and columns to log."""

    factor: Tensor
    metrics: Mapping[str, Tensor]


# functions of (tokens: Tokens, *, options)
Objective = Callable[..., TokenLoss]
CorrectionFunction = Callable[..., Correction]


_load = partial(import_folder, "turnwise.objectives", without=("kl", "loss", "tokens", "value"))  # these compute, and need torch
# functions, or classes whose objects are called in the same way
algorithms: Registry[Callable[..., Any]] = Registry("objective", _load, OBJECTIVE)
corrections: Registry[Callable[..., Any]] = Registry("importance correction", _load, IMPORTANCE)

register = algorithms.register
register_correction = corrections.register
