"""Layers whose weights are sharded over several ranks (`turnwise.learn.ranks`): a layer has whole parameters only while its module is
called, and again during its backward pass. So nothing of them is held between passes. Each half joins the parameters that it is called
with, and its backward pass joins them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turnwise.engines.native.families import shape_of
from turnwise.engines.native.weights import NO_ROTATION, Layer, norm_factors, rotation_of, rotations_of
from turnwise.kernels.experts import Experts


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
    after_attention: Tensor | None = None
    before_mlp: Any = None
    gate_up: Any = None
    down: Any = None
    after_mlp: Tensor | None = None
    experts: Experts | None = None
    rotation: int = 0
    window: int = 0


@dataclass(frozen=True, slots=True)
class ShardedLayer:
    """Everything about a layer except its weights. `centred`: norms multiply by 1 + weight. `choices` and `normed` are the router's."""

    centred: bool
    rotation: int
    window: int
    sparse: bool = False
    choices: int = 0
    normed: bool = False

    def attention(self, weights: Sequence[Tensor | None]) -> Half:
        """The first half, from its parameters in the order of `AttentionHalf`."""
        before, out, q, k, v, *biases, q_norm, k_norm, after = weights
        assert out is not None
        return Half(
            before_attention=self._factors(before),
            qkv=Product(_joined(q, k, v), _joined(*biases) if biases[0] is not None else None),
            q_norm=self._factors(q_norm),
            k_norm=self._factors(k_norm),
            out=Product(out),
            after_attention=self._factors(after),
            rotation=self.rotation,
            window=self.window,
        )

    def mlp(self, weights: Sequence[Tensor | None]) -> Half:
        """The second half, from its parameters in the order of `MlpHalf` or of `ExpertsHalf`."""
        before, *rest = weights
        if self.sparse:
            router, gate_up, down = (weight for weight in rest if weight is not None)
            return Half(before_mlp=self._factors(before), experts=Experts(router, gate_up, down, self.choices, self.normed))
        out, gate, up, after = rest
        assert out is not None
        both = Product(_joined(gate, up))
        return Half(before_mlp=self._factors(before), gate_up=both, down=Product(out), after_mlp=self._factors(after))

    def _factors(self, weight: Tensor | None) -> Tensor | None:
        return norm_factors(weight) if self.centred and weight is not None else weight


def _joined(*weights: Tensor | None) -> Tensor:
    return torch.cat([weight for weight in weights if weight is not None])


def attention_of(layer: Layer | ShardedLayer, weights: Sequence[Tensor | None]) -> Layer | Half:
    """The first half of a layer as it is computed with."""
    return layer if isinstance(layer, Layer) else layer.attention(weights)


def mlp_of(layer: Layer | ShardedLayer, weights: Sequence[Tensor | None]) -> Layer | Half:
    """The second half of a layer as it is computed with."""
    return layer if isinstance(layer, Layer) else layer.mlp(weights)


def for_later(layer: Layer | ShardedLayer, weights: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The parameters that a backward pass needs to join again: none if the layer has them joined. Keeping them takes no memory: they are
    empty between the passes."""
    return () if isinstance(layer, Layer) else weights


class ShardedWeights:
    """A model as `Weights` describes one, without its weights. `dtype` is what it computes in."""

    def __init__(self, model: Any, dtype: torch.dtype):
        self.model, self.dtype = model, dtype
        self.shape = shape_of(model.config)
        self.layers = [self._layer(layer) for layer in model.model.layers]
        factor = getattr(model.model.embed_tokens, "embed_scale", None)
        self.embedding_scale = None if factor is None else factor.to(dtype).to(next(model.parameters()).device)

    def _layer(self, layer: Any) -> ShardedLayer:
        attention, gate = layer.self_attn, getattr(layer.mlp, "gate", None)
        window = getattr(attention, "sliding_window", None) or 0
        plain = ShardedLayer(self.shape.centred, rotation_of(self.model.model, attention), window)
        if not hasattr(layer.mlp, "experts"):
            return plain
        assert gate is not None
        return ShardedLayer(plain.centred, plain.rotation, window, True, int(gate.top_k), bool(gate.norm_topk_prob))

    @property
    def norm(self) -> Tensor:
        """The factors of the last norm. The model's root is whole."""
        weight: Tensor = self.model.model.norm.weight.detach()
        return norm_factors(weight) if self.shape.centred else weight

    def rotations(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """As those of `Weights`."""
        none = any(layer.rotation == NO_ROTATION for layer in self.layers)
        return rotations_of(self.model.model, length, next(self.model.parameters()).device, self.dtype, none)

    def update(self) -> bool:
        """Nothing is held."""
        return False

    def copy_again(self) -> None:
        """Nothing is copied."""
