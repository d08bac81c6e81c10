"""Layers whose weights are sharded over several ranks (`turnwise.learn.ranks`): a layer has whole parameters only while its module is
called, and again during its backward pass. So nothing of them is held between passes. Each half joins the parameters that it is called
with, and its backward pass joins them again. A layer with weights of its own is a `Layer` of the native engine; None stands for these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turnwise.engines.native.families import shape_of
from turnwise.engines.native.weights import Layer, rotations_of


@dataclass(frozen=True, slots=True)
class Product:
    """A joined weight and its joined bias."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Half:
    """The weights of one half of a layer, under the names that `Layer` has for them."""

    before_attention: Any = None
    qkv: Any = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    out: Any = None
    before_mlp: Any = None
    gate_up: Any = None
    down: Any = None


def attention_of(layer: Layer | None, weights: Sequence[Tensor | None]) -> Layer | Half:
    """The first half of a layer as it is computed with; without the layer, from its parameters in the order of `AttentionHalf`."""
    if layer is not None:
        return layer
    before, out, q, k, v, *biases, q_norm, k_norm = weights
    assert out is not None
    qkv = Product(_joined(q, k, v), _joined(*biases) if biases[0] is not None else None)
    return Half(before_attention=before, qkv=qkv, q_norm=q_norm, k_norm=k_norm, out=Product(out))


def mlp_of(layer: Layer | None, weights: Sequence[Tensor | None]) -> Layer | Half:
    """The second half of a layer as it is computed with; without the layer, from its parameters in the order of `MlpHalf`."""
    if layer is not None:
        return layer
    before, down, gate, up = weights
    assert down is not None
    return Half(before_mlp=before, gate_up=Product(_joined(gate, up)), down=Product(down))


def for_later(layer: Layer | None, weights: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The parameters that a backward pass needs to join again: none if the layer has them joined. Keeping them takes no memory: they are
    empty between the passes."""
    return weights if layer is None else ()


def _joined(*weights: Tensor | None) -> Tensor:
    return torch.cat([weight for weight in weights if weight is not None])


class ShardedWeights:
    """A model as `Weights` describes one, without its weights. `dtype` is what it computes in."""

    def __init__(self, model: Any, dtype: torch.dtype):
        self.model, self.dtype = model, dtype
        self.shape = shape_of(model.config)
        self.layers = [None] * self.shape.layers

    def rotations(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """As those of `Weights`."""
        return rotations_of(self.model.model, length, next(self.model.parameters()).device, self.dtype, none=False)

    def update(self) -> bool:
        """Nothing is held."""
        return False

    def copy_again(self) -> None:
        """Nothing is copied."""
