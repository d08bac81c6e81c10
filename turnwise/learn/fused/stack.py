"""A whole model of such layers, straight from the parameters of a transformers model: nothing is copied and nothing is wrapped.

Which models: Llama, Qwen2 and Qwen3 as the native engine knows them, without windows, dropout, or biases other than those of query, key
and value; with LoRA adapters, and with weights in 4 bits. `PackedModel` uses it on a GPU in half precision, and on a CPU in float32.

If several processes share the weights (`turnwise.learn.ranks`), a layer has whole parameters only while its module is called. So the
modules are called, and compute with these layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from turnwise.engines.native import supports
from turnwise.engines.native.families import base_of, causal_of
from turnwise.engines.native.weights import Layer, Weights
from turnwise.learn.activations import Kept
from turnwise.learn.fused.adapters import parameters
from turnwise.learn.fused.attention import Frame
from turnwise.learn.fused.layers import AttentionHalf, Embedding, LastNorm, MlpHalf
from turnwise.learn.fused.sharded import ShardedWeights
from turnwise.learn.shapes import FUSED
from turnwise.learn.weights import buffer_of, reserve


def reason_against(model: Any, sharded: bool = False) -> str | None:
    """Why this model cannot be run this way; None if it can. `sharded`: several processes will share its weights."""
    if sharded and hasattr(model, "peft_config"):
        return "it has adapters"
    if reason := supports(model):
        return reason
    causal = causal_of(model)
    if causal.config.model_type not in FUSED:
        return f"they are for the {', '.join(FUSED)} families"
    if any(getattr(layer.self_attn, "sliding_window", None) for layer in causal.model.layers):
        return "its attention has sliding windows"
    if getattr(causal.config, "attention_dropout", 0.0):
        return "its attention has dropout"
    if any(getattr(dropout, "p", 0.0) for module in causal.modules() for dropout in getattr(module, "lora_dropout", {}).values()):
        return "its adapters have dropout"
    for layer in causal.model.layers:
        linears = layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj
        if any(base_of(module).bias is not None for module in linears):
            return "it has biases after attention"
    return None


Parameters = tuple[list[Any], list[Any]]  # the arguments of both halves


@dataclass(frozen=True)
class Pass:
    """One layer of one pass: all that it needs apart from its input and its parameters."""

    layer: Layer | None
    frame: Frame
    activation: str
    kept: tuple[bool, bool]  # of what attention and MLP computed
    places: Tensor | None

    def __call__(self, module: Any, x: Tensor, delta: Tensor | None, own: Parameters | None = None) -> tuple[Tensor, Tensor]:
        """Both halves with the parameters of the module (`own`, if they have been looked up)."""
        attention, mlp = self.kept if torch.is_grad_enabled() else (self.kept[0], False)
        first, second = parameters_of(module, self.layer) if own is None else own
        x, delta = AttentionHalf.apply(x, delta, self.layer, self.frame, attention, self.places, *first)
        found: tuple[Tensor, Tensor] = MlpHalf.apply(x, delta, self.layer, self.frame.eps, self.activation, mlp, *second)
        return found


class FusedStack:
    """`model` is a causal language model of transformers for which `reason_against` found nothing. `sharded`: several processes share its
    weights, and compute in this dtype."""

    def __init__(self, model: Any, sharded: torch.dtype | None = None):
        self.model, self.sharded = model, sharded
        self._weights: Weights | ShardedWeights | None = None
        self._places: list[int] = []  # of the parameters when they were looked up
        self._parameters: dict[int, Parameters] = {}  # by layer
        self.kept = Kept()
        self._table: tuple[Tensor, Tensor] | None = None
        if sharded is not None:
            for module in model.model.layers:
                module.forward = MethodType(_forward, module)

    @property
    def weights(self) -> Weights | ShardedWeights:
        """The parameters as these layers read them."""
        if self._weights is None:
            self._weights = Weights(self.model, stacks=False) if self.sharded is None else ShardedWeights(self.model, self.sharded)
        return self._weights

    def update(self) -> None:
        """Look up where the parameters are now: something may have moved them."""
        if self._weights is not None and self._places and self._places == self._look():
            return
        self._forget()
        self.weights.update()
        self._places = self._look()

    def _look(self) -> list[int]:
        """Which parameters there are, and where; nothing if some are copied or belong to several processes, so that this says nothing."""
        found = list(self.model.parameters()) if self.sharded is None else []
        return [own for one in found for own in (id(one), one.data_ptr())] if len({parameter.dtype for parameter in found}) == 1 else []

    def _of(self, number: int, module: Any, layer: Layer | None) -> Parameters | None:
        """The parameters of a layer, if those of all layers are where they were. Adapters may be switched on and off at any time."""
        if not self._places or any(linear.adapted for linear in getattr(layer, "linears", ())):
            return None
        if number not in self._parameters:
            self._parameters[number] = parameters_of(module, layer)
        return self._parameters[number]

    def reserve(self) -> None:
        """Give the gradients of all matrices their places. Taken as a backward pass goes, they would lie between activations, and leave
        gaps when those are gone: too small for the next micro-batch, and too large for a small GPU."""
        inner = self.model.model
        for module in inner.layers:
            _, out, *joint = _attention(module)
            _, down, *both = _mlp(module)
            for group in ([out], joint[:3], [down], both):
                reserve(group)
        for weight in (inner.embed_tokens.weight, self.model.lm_head.weight):  # the second has its place if it is the first
            reserve([weight])

    def release(self) -> None:
        """Forget where the parameters are until they are needed again."""
        self._weights = None
        self._forget()

    def _forget(self) -> None:
        self._places, self._parameters = [], {}

    def hidden(self, ids: Tensor, positions: Tensor, lengths: list[int], offsets: Tensor, places: Tensor | None = None) -> Tensor:
        """The last hidden states of all tokens of a packed row, or of those at `places` (each at most once)."""
        inner, shape = self.model.model, self.weights.shape
        layers: Sequence[Layer | None] = self.weights.layers
        self.weights.copy_again()  # an optimiser step may have been taken since the last look
        sizes = shape.heads, shape.kv_heads, shape.head_dim
        frame = Frame(lengths, offsets, positions, *self._rotation(max(lengths)), *sizes, shape.eps)
        x, delta = embedded(ids, inner.embed_tokens), None
        for number, (layer, module) in enumerate(zip(layers, inner.layers, strict=True)):
            left = len(layers) - number
            own = Pass(layer, frame, shape.activation, self.kept.of(left), places if left == 1 else None)
            x, delta = own(module, x, delta, self._of(number, module, layer)) if self.sharded is None else module(x, delta, own)
        out: Tensor = LastNorm.apply(x, delta, inner.norm.weight, shape.eps)
        return out

    def _rotation(self, longest: int) -> tuple[Tensor, Tensor]:
        """Cos and sin of the angles of at least so many positions."""
        table = self._table
        if table is None or len(table[0]) < longest:  # another thread may store a shorter one meanwhile
            size = 1 << max(longest - 1, 1023).bit_length()
            with torch.no_grad():
                self._table = table = self.weights.rotations(size)[0]
        return table


def embedded(ids: Tensor, module: Any) -> Tensor:
    """The rows of an embedding."""
    if buffer_of(module.weight) is None or not module.weight.requires_grad:
        return embedding(ids, module.weight, module.padding_idx)
    found: Tensor = Embedding.apply(ids, module.weight, module.padding_idx)
    return found


def _forward(module: Any, x: Tensor, *rest: Any, **named: Any) -> Any:
    """The forward pass of a module that also takes a `Pass`, after the residual and what is to be added to it."""
    if len(rest) == 2 and isinstance(rest[1], Pass):
        return rest[1](module, x, rest[0])
    return type(module).forward(module, x, *rest, **named)


def parameters_of(module: Any, layer: Layer | None) -> Parameters:
    """What both halves of a layer take: parameters, and the factors of adapters. Layers whose weights several processes share have none."""

    def adapters(*products: str) -> list[Tensor]:
        return [] if layer is None else parameters(*(getattr(layer, name) for name in products))

    return [*_attention(module), *adapters("out", "qkv")], [*_mlp(module), *adapters("down", "gate_up")]


def _attention(module: Any) -> list[Tensor | None]:
    """The parameters of the first half, in the order in which it returns their gradients."""
    own = module.self_attn
    linears, last = [base_of(layer) for layer in (own.q_proj, own.k_proj, own.v_proj)], base_of(own.o_proj)
    norms = [own.q_norm.weight, own.k_norm.weight] if hasattr(own, "q_norm") else [None, None]
    weights = [module.input_layernorm.weight, last.weight, *(layer.weight for layer in linears)]
    return [*weights, *(layer.bias for layer in linears), *norms]


def _mlp(module: Any) -> list[Tensor | None]:
    """The parameters of the second half, in that order."""
    own = module.mlp
    linears = [base_of(layer).weight for layer in (own.down_proj, own.gate_proj, own.up_proj)]
    return [module.post_attention_layernorm.weight, *linears]
