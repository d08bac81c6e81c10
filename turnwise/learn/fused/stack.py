"""A whole model of such layers, straight from the parameters of a transformers model: nothing is copied and nothing is wrapped.

Which models: what the native engine knows, without adapters, dropout, or biases other than those of query, key and value. On a GPU in
half precision `PackedModel` uses it; on a CPU only tests do, so that results there stay those of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from turnwise.engines.native import supports
from turnwise.engines.native.weights import OUTSIDE, Weights
from turnwise.learn.fused.attention import Frame
from turnwise.learn.fused.experts import ExpertsHalf
from turnwise.learn.fused.layers import AttentionHalf, LastNorm, MlpHalf

ALL = 10**6


@dataclass(frozen=True)
class Kept:
    """In how many layers, counted from the last, attention and MLP keep what they computed for the backward pass."""

    attention: int = ALL
    mlp: int = ALL


def reason_against(model: Any) -> str | None:
    """Why this model cannot be run this way; None if it can."""
    if hasattr(model, "peft_config"):
        return "it has adapters"
    if reason := supports(model):
        return reason
    if getattr(model.config, "attention_dropout", 0.0):
        return "its attention has dropout"
    for layer in model.model.layers:
        mlp = [] if hasattr(layer.mlp, "experts") else [layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj]
        if any(module.bias is not None for module in (layer.self_attn.o_proj, *mlp)):
            return "it has biases after attention"
    return None


class FusedStack:
    """`model` is a causal language model of transformers for which `reason_against` found nothing."""

    def __init__(self, model: Any):
        self.model = model
        self._weights: Weights | None = Weights(model)
        self.kept = Kept()
        self._tables: list[tuple[Tensor, Tensor]] = []

    @property
    def weights(self) -> Weights:
        """The parameters as these layers read them."""
        if self._weights is None:
            self._weights = Weights(self.model)
        return self._weights

    def update(self) -> None:
        """Look up where the parameters are now: something may have moved them."""
        self.weights.update()

    def release(self) -> None:
        """Forget where the parameters are until they are needed again."""
        self._weights = None

    def hidden(self, ids: Tensor, positions: Tensor, lengths: list[int], offsets: Tensor, places: Tensor | None = None) -> Tensor:
        """The last hidden states of all tokens of a packed row, or of those at `places` (each at most once)."""
        inner, shape, layers = self.model.model, self.weights.shape, self.weights.layers
        fetch = getattr(self.model, "fetch_layer", None)  # of a model whose layers come from host memory
        self.weights.copy_again(None if fetch is None else OUTSIDE)  # an optimiser step may have been taken since the last look
        cos, sin = zip(*self._rotations(max(lengths)), strict=True)
        sizes = shape.heads, shape.kv_heads, shape.head_dim
        frame = Frame(lengths, offsets, positions, cos, sin, *sizes, shape.eps, scaling=shape.scaling)
        x, delta = embedding(ids, inner.embed_tokens.weight, inner.embed_tokens.padding_idx), None
        if self.weights.embedding_scale is not None:
            x = x * self.weights.embedding_scale
        for number, (layer, module) in enumerate(zip(layers, inner.layers, strict=True)):
            if fetch is not None:
                fetch(number)
                self.weights.copy_again(number)
            left = len(layers) - number
            chosen = places if left == 1 else None
            x, delta = AttentionHalf.apply(x, delta, layer, frame, left <= self.kept.attention, chosen, *_attention(module))
            half, weights = (MlpHalf, _mlp(module)) if layer.experts is None else (ExpertsHalf, _experts(module))
            x, delta = half.apply(x, delta, layer, shape.eps, shape.activation, left <= self.kept.mlp, *weights)
        out: Tensor = LastNorm.apply(x, delta, inner.norm.weight, self.weights.norm, shape.eps)
        return out

    def _rotations(self, longest: int) -> list[tuple[Tensor, Tensor]]:
        if not self._tables or len(self._tables[0][0]) < longest:
            size = 1 << max(longest - 1, 1023).bit_length()
            with torch.no_grad():
                self._tables = self.weights.rotations(size)
        return self._tables


def _attention(module: Any) -> list[Tensor | None]:
    """The parameters of the first half, in the order in which it returns their gradients."""
    own = module.self_attn
    linears = (own.q_proj, own.k_proj, own.v_proj)
    norms = [own.q_norm.weight, own.k_norm.weight] if hasattr(own, "q_norm") else [None, None]
    after = module.post_attention_layernorm.weight if _wrapped(module) else None
    weights = [module.input_layernorm.weight, own.o_proj.weight, *(layer.weight for layer in linears)]
    return [*weights, *(layer.bias for layer in linears), *norms, after]


def _mlp(module: Any) -> list[Tensor | None]:
    own, wrapped = module.mlp, _wrapped(module)
    before = module.pre_feedforward_layernorm if wrapped else module.post_attention_layernorm
    after = module.post_feedforward_layernorm.weight if wrapped else None
    return [before.weight, own.down_proj.weight, own.gate_proj.weight, own.up_proj.weight, after]


def _experts(module: Any) -> list[Tensor | None]:
    own = module.mlp
    return [module.post_attention_layernorm.weight, own.gate.weight, own.experts.gate_up_proj, own.experts.down_proj]


def _wrapped(module: Any) -> bool:
    """Whether norms stand also after attention and MLP (Gemma)."""
    return hasattr(module, "pre_feedforward_layernorm")
