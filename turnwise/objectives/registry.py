"""Objectives by name. A new one is one new file in this folder, or a function of your own.

An objective is a function from `Tokens` to one loss a token:

    @register("my_objective", paper="…")
    def my_objective(tokens: Tokens, *, bound: Annotated[float, Help("what it does", low=0)] = 0.2) -> TokenLoss:
        '''One sentence that users see in lists.'''
        return TokenLoss(-tokens.advantage * tokens.ratio.clamp(max=1 + bound), {"bounded": tokens.ratio > 1 + bound})

It never sums, averages over the batch or looks at weights, which is why it cannot depend on how the batch was split. An option named
`level` ("token", "turn", "trajectory") says over which span it averages, and so which span a micro-batch must hold whole. Statistics
of the whole batch are data, like the weights: compute them before the split and pass them as a column of `Tokens.extra`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from turnwise.config.options import Registry


class TokenLoss(NamedTuple):
    """What an objective gives: a loss for every token, and columns (numbers or booleans) whose batch means are worth logging."""

    loss: Tensor
    metrics: Mapping[str, Tensor]


class Correction(NamedTuple):
    """What an importance correction gives: a factor for every token's policy loss, and columns worth logging."""

    factor: Tensor
    metrics: Mapping[str, Tensor]


# functions of (tokens: Tokens, *, options)
Objective = Callable[..., TokenLoss]
CorrectionFunction = Callable[..., Correction]


def _load() -> None:
    """Import every file of this folder: that is where the built-in ones register themselves."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")


algorithms: Registry[Objective] = Registry("objective", _load)
corrections: Registry[CorrectionFunction] = Registry("importance correction", _load)

register = algorithms.register
register_correction = corrections.register
