"""A whole model of such layers, straight from the parameters of a transformers model: nothing is copied and nothing is wrapped.

Which models: what the native engine knows, without adapters, norms on queries and keys, dropout, or biases other than those of query, key
and value. On a GPU in half precision `PackedModel` uses it; on a CPU only tests do, so that results there stay those of transformers.

Several processes that share the weights (`turnwise.learn.ranks`) have those of a layer while its module is called, so there the modules are
called, and their forward pass is replaced by ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from turnwise.engines.native import supports
from turnwise.engines.native.weights import Layer, Weights, rotation, shape_of
from turnwise.learn.fused.attention import Frame
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
    config, layer = model.config, model.model.layers[0]
    if getattr(config, "attention_dropout", 0.0):
        return "its attention has dropout"
    if hasattr(layer.self_attn, "q_norm"):
        return "it norms queries and keys"
    plain = (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    return "it has biases after attention" if any(module.bias is not None for module in plain) else None


@dataclass(frozen=True)
class Call:
    """One layer of one pass, for a module whose parameters are whole only while it is called."""

    frame: Frame
    kept: tuple[bool, bool]
    places: Tensor | None

    def __call__(self, module: Any, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        return _layer(x, delta, None, module, self)


class FusedStack:
    """`model` is a causal language model of transformers for which `reason_against` found nothing. `shared`: its weights are shared by
    several processes, which compute in this dtype."""

    def __init__(self, model: Any, shared: torch.dtype | None = None):
        self.model, self.shape, self.shared = model, shape_of(model.config), shared
        self._weights = Weights(model) if shared is None else None
        self.dtype = shared if self._weights is None else self._weights.dtype
        self.kept = Kept()
        self._tables: tuple[Tensor, Tensor] | None = None
        if shared is not None:
            for module in model.model.layers:
                _take_calls(module)

    @property
    def weights(self) -> Weights | None:
        """The parameters as these layers read them; None if several processes share them."""
        if self._weights is None and self.shared is None:
            self._weights = Weights(self.model)
        return self._weights

    def update(self) -> None:
        """Look up where the parameters are now: something may have moved them."""
        if (weights := self.weights) is not None:
            weights.update()

    def release(self) -> None:
        """Forget where the parameters are until they are needed again."""
        self._weights = None

    def hidden(self, ids: Tensor, positions: Tensor, lengths: list[int], offsets: Tensor, places: Tensor | None = None) -> Tensor:
        """The last hidden states of all tokens of a packed row, or of those at `places` (each at most once)."""
        inner, shape = self.model.model, self.shape
        weights = self.weights
        joined = weights.layers if weights is not None else [None] * len(inner.layers)
        cos, sin = self._rotations(max(lengths))
        frame = Frame(lengths, offsets, positions, cos, sin, shape.heads, shape.kv_heads, shape.head_dim, shape.eps)
        x, delta = embedding(ids, inner.embed_tokens.weight, inner.embed_tokens.padding_idx), None
        fetch = getattr(self.model, "fetch_layer", None)  # of a model whose layers come from host memory
        for number, (layer, module) in enumerate(zip(joined, inner.layers, strict=True)):
            if fetch is not None:
                fetch(number)
            left = len(joined) - number
            call = Call(frame, (left <= self.kept.attention, left <= self.kept.mlp), places if left == 1 else None)
            x, delta = module(x, delta, call) if layer is None else _layer(x, delta, layer, module, call)
        out: Tensor = LastNorm.apply(x, delta, inner.norm.weight, shape.eps)
        return out

    def _rotations(self, longest: int) -> tuple[Tensor, Tensor]:
        if self._tables is None or len(self._tables[0]) < longest:
            size = 1 << max(longest - 1, 1023).bit_length()
            with torch.no_grad():
                inner = self.model.model
                self._tables = rotation(inner.rotary_emb, size, self.model.lm_head.weight.device, self.dtype)
        return self._tables


def _layer(x: Tensor, delta: Tensor | None, layer: Layer | None, module: Any, call: Call) -> tuple[Tensor, Tensor]:
    """Both halves of a layer."""
    attention, mlp = call.kept
    x, delta = AttentionHalf.apply(x, delta, layer, call.frame, attention, call.places, *_attention(module))
    found: tuple[Tensor, Tensor] = MlpHalf.apply(x, delta, layer, call.frame.eps, mlp, *_mlp(module))
    return found


def _take_calls(module: Any) -> None:
    """From now on, a layer's module also takes a `Call` after its usual first argument and what is to be added to it."""
    own = module.forward

    def forward(x: Tensor, *rest: Any, **named: Any) -> Any:
        if len(rest) == 2 and isinstance(rest[1], Call):
            return rest[1](module, x, rest[0])
        return own(x, *rest, **named)

    module.forward = forward


def _attention(module: Any) -> list[Tensor]:
    """The parameters of the first half, in the order in which it returns their gradients."""
    own = module.self_attn
    linears = (own.q_proj, own.k_proj, own.v_proj)
    biases = [layer.bias for layer in linears if layer.bias is not None]
    return [module.input_layernorm.weight, own.o_proj.weight, *(layer.weight for layer in linears), *biases]


def _mlp(module: Any) -> list[Tensor]:
    return [module.post_attention_layernorm.weight, module.mlp.down_proj.weight, module.mlp.gate_proj.weight, module.mlp.up_proj.weight]
