"""A whole model of such layers, straight from the parameters of a transformers model: nothing is copied and nothing is wrapped.

Which models: what the native engine knows, without dropout, or biases other than those of query, key and value; with LoRA adapters, and
with weights in 4 bits. `PackedModel` uses it on a GPU in half precision, and on a CPU in float32.

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
from turnwise.learn.fused.layers import AnyLayer, AttentionHalf, Embedding, ExpertsHalf, LastNorm, MlpHalf
from turnwise.learn.fused.sharded import ShardedWeights
from turnwise.learn.weights import buffer_of, reserve


def reason_against(model: Any, sharded: bool = False) -> str | None:
    """Why this model cannot be run this way; None if it can. `sharded`: several processes will share its weights."""
    if sharded and hasattr(model, "peft_config"):
        return "it has adapters"
    if reason := supports(model):
        return reason
    causal = causal_of(model)
    if getattr(causal.config, "attention_dropout", 0.0):
        return "its attention has dropout"
    if any(getattr(dropout, "p", 0.0) for module in causal.modules() for dropout in getattr(module, "lora_dropout", {}).values()):
        return "its adapters have dropout"
    for layer in causal.model.layers:
        mlp = [] if _is_sparse(layer) else [layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj]
        if any(base_of(module).bias is not None for module in (layer.self_attn.o_proj, *mlp)):
            return "it has biases after attention"
    return None


Parameters = tuple[Any, list[Any], list[Any]]  # the second half's function, and the arguments of both halves


@dataclass(frozen=True)
class Pass:
    """One layer of one pass: all that it needs apart from its input and its parameters."""

    layer: AnyLayer
    frame: Frame
    activation: str
    kept: tuple[bool, bool]  # of what attention and MLP computed
    places: Tensor | None

    def __call__(self, module: Any, x: Tensor, delta: Tensor | None, own: Parameters | None = None) -> tuple[Tensor, Tensor]:
        """Both halves with the parameters of the module (`own`, if they have been looked up)."""
        attention, mlp = self.kept if torch.is_grad_enabled() else (self.kept[0], False)
        half, first, second = parameters_of(module, self.layer) if own is None else own
        x, delta = AttentionHalf.apply(x, delta, self.layer, self.frame, attention, self.places, *first)
        found: tuple[Tensor, Tensor] = half.apply(x, delta, self.layer, self.frame.eps, self.activation, mlp, *second)
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
        self._tables: list[tuple[Tensor, Tensor]] = []
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

    def _of(self, number: int, module: Any, layer: AnyLayer) -> Parameters | None:
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
            groups = [[out], joint[:3]]
            if _is_sparse(module):
                groups += [[weight] for weight in _experts(module)[1:]]
            else:
                _, down, *both = _mlp(module)
                groups += [[down], both[:2]]
            for group in groups:
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
        layers: Sequence[AnyLayer] = self.weights.layers
        self.weights.copy_again()  # an optimiser step may have been taken since the last look
        cos, sin = zip(*self._rotations(max(lengths)), strict=True)
        sizes = shape.heads, shape.kv_heads, shape.head_dim
        frame = Frame(lengths, offsets, positions, cos, sin, *sizes, shape.eps, scaling=shape.scaling)
        x, delta = embedded(ids, inner.embed_tokens), None
        if self.weights.embedding_scale is not None:
            x = x * self.weights.embedding_scale
        for number, (layer, module) in enumerate(zip(layers, inner.layers, strict=True)):
            left = len(layers) - number
            own = Pass(layer, frame, shape.activation, self.kept.of(left), places if left == 1 else None)
            x, delta = own(module, x, delta, self._of(number, module, layer)) if self.sharded is None else module(x, delta, own)
        out: Tensor = LastNorm.apply(x, delta, inner.norm.weight, self.weights.norm, shape.eps)
        return out

    def _rotations(self, longest: int) -> list[tuple[Tensor, Tensor]]:
        tables = self._tables
        if not tables or len(tables[0][0]) < longest:  # another thread may store shorter ones meanwhile
            size = 1 << max(longest - 1, 1023).bit_length()
            with torch.no_grad():
                self._tables = tables = self.weights.rotations(size)
        return tables


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


def parameters_of(module: Any, layer: AnyLayer) -> Parameters:
    """What both halves of a layer take: parameters, and the factors of adapters. Layers whose weights several processes share have none."""

    def adapters(*products: str) -> list[Tensor]:
        return parameters(*(getattr(layer, name) for name in products)) if isinstance(layer, Layer) else []

    half, weights = (ExpertsHalf, _experts(module)) if _is_sparse(module) else (MlpHalf, _mlp(module))
    return half, [*_attention(module), *adapters("out", "qkv")], [*weights, *adapters("down", "gate_up")]


def _attention(module: Any) -> list[Tensor | None]:
    """The parameters of the first half, in the order in which it returns their gradients."""
    own = module.self_attn
    linears, last = [base_of(layer) for layer in (own.q_proj, own.k_proj, own.v_proj)], base_of(own.o_proj)
    norms = [own.q_norm.weight, own.k_norm.weight] if hasattr(own, "q_norm") else [None, None]
    after = module.post_attention_layernorm.weight if _wrapped(module) else None
    weights = [module.input_layernorm.weight, last.weight, *(layer.weight for layer in linears)]
    return [*weights, *(layer.bias for layer in linears), *norms, after]


def _mlp(module: Any) -> list[Tensor | None]:
    own, wrapped = module.mlp, _wrapped(module)
    before = module.pre_feedforward_layernorm if wrapped else module.post_attention_layernorm
    after = module.post_feedforward_layernorm.weight if wrapped else None
    linears = [base_of(layer).weight for layer in (own.down_proj, own.gate_proj, own.up_proj)]
    return [before.weight, *linears, after]


def _experts(module: Any) -> list[Tensor | None]:
    own = module.mlp
    return [module.post_attention_layernorm.weight, own.gate.weight, own.experts.gate_up_proj, own.experts.down_proj]


def _is_sparse(module: Any) -> bool:
    """Whether a layer's MLP is a mixture of experts."""
    return hasattr(module.mlp, "experts")


def _wrapped(module: Any) -> bool:
    """Whether norms stand also after attention and MLP (Gemma)."""
    return hasattr(module, "pre_feedforward_layernorm")
