"""The room that objectives live in: a name, a function of one screen, typed options. A new objective is one new file.

An objective is a function from `Tokens` to one loss a token:

    @register("my_objective", paper="…")
    def my_objective(tokens: Tokens, *, bound: Annotated[float, Help("what it does", low=0)] = 0.2) -> TokenLoss:
        \"\"\"One sentence that users see in lists.\"\"\"
        return TokenLoss(-tokens.advantage * tokens.ratio.clamp(max=1 + bound), {"bounded": tokens.ratio > 1 + bound})

It never sums, averages over the batch or looks at weights, which is why it cannot depend on how the batch was split. An option named
`level` ("token", "turn", "trajectory") says over which span it averages, and so which span a micro-batch must hold whole. Statistics
of the whole batch are data, like the weights: compute them before the split and pass them as a column of `Tokens.extra`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import NamedTuple

from torch import Tensor

from turnwise.objectives.tokens import Tokens
from turnwise.options import Registry


class TokenLoss(NamedTuple):
    """What an objective gives: a loss for every token, and columns (numbers or booleans) whose batch means are worth logging."""

    loss: Tensor
    metrics: Mapping[str, Tensor]


Objective = Callable[..., TokenLoss]  # (tokens: Tokens, *, options) -> TokenLoss
Correction = Callable[..., TokenLoss]  # the same shape; `loss` holds the weight that multiplies each token's loss


def _load_objectives() -> None:
    for name in ("clip", "gspo", "gmpo", "cispo", "sapo", "reinforce"):
        import_module(f"turnwise.objectives.{name}")


def _load_corrections() -> None:
    import_module("turnwise.objectives.importance")


OBJECTIVES: Registry[Objective] = Registry("objective", _load_objectives)
CORRECTIONS: Registry[Correction] = Registry("importance correction", _load_corrections)

register = OBJECTIVES.register
register_correction = CORRECTIONS.register

__all__ = ["OBJECTIVES", "CORRECTIONS", "register", "register_correction", "TokenLoss", "Tokens", "Objective", "Correction"]
