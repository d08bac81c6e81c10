"""The heads of further models, and what a kind of model (`turnwise/methods/kinds_of_models.py`) may say about its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from turnwise.learn.further.said import Said
from turnwise.learn.further.scorer import ReadAt
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

READ_AT: tuple[ReadAt, ...] = ("turn", "turn_end", "token")
Metrics = Mapping[str, Any]
Loss = Callable[[Said], "Tensor | tuple[Tensor, Metrics] | None"]


@runtime_checkable
class HasLoss(Protocol):
    """A kind that says itself how its model is trained."""

    def loss(self, said: Said) -> Tensor | tuple[Tensor, Metrics] | None: ...


def heads_of(kind: Any, size: int, where: str) -> tuple[dict[str, ReadAt], nn.ModuleDict]:
    """Where each head of a kind is read, and the layers themselves: `kind.head(name, size)`, or a linear one that starts at zero.
    With `kind.spread`, its weights start at random, by the head's name: two heads that learn the same column then differ. With
    `kind.layers`, that many layers with ReLU come before it, which start at random in the same way."""
    places: dict[str, ReadAt] = dict(kind.heads()) if hasattr(kind, "heads") else {}
    for name, place in places.items():
        if place not in READ_AT or not name.isidentifier():
            raise TurnwiseError(f"{where}: heads are names with one of {', '.join(READ_AT)}, not {name!r}: {place!r}")
    spread, layers = float(getattr(kind, "spread", 0.0)), int(getattr(kind, "layers", 0))
    make_head = getattr(kind, "head", lambda name, size: deep(size, layers, spread, derive(0, "head", name)))
    return places, nn.ModuleDict({name: make_head(name, size) for name in places}).float()


def linear(size: int, spread: float = 0.0, seed: int = 0) -> nn.Module:
    """A linear layer that starts at zero: before it has learned, everything is worth 0. Or with normal weights of deviation `spread`."""
    layer = nn.Linear(size, 1)
    nn.init.zeros_(layer.weight)
    if spread > 0:
        nn.init.normal_(layer.weight, std=spread, generator=torch.Generator().manual_seed(seed))
    nn.init.zeros_(layer.bias)
    return layer


def deep(size: int, layers: int, spread: float = 0.0, seed: int = 0) -> nn.Module:
    """A linear layer behind `layers` hidden ones with ReLU."""
    generator = torch.Generator().manual_seed(derive(seed, "hidden layers") % 2**63)
    parts: list[nn.Module] = []
    for _ in range(layers):
        hidden = nn.Linear(size, size)
        nn.init.normal_(hidden.weight, std=(2 / size) ** 0.5, generator=generator)
        nn.init.zeros_(hidden.bias)
        parts += [hidden, nn.ReLU()]
    last = linear(size, spread, seed)
    return nn.Sequential(*parts, last) if parts else last
