"""A whole model of such layers, straight from the parameters of a transformers model: nothing is copied and nothing is wrapped.

Which models: what the native engine knows, without adapters, norms on queries and keys, dropout, or biases other than those of query, key
and value. On a GPU in half precision `PackedModel` uses it; on a CPU only tests do, so that results there stay those of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from turnwise.engines.native import supports
from turnwise.engines.native.weights import Weights
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
    if config.model_type not in ("llama", "qwen2") or any(getattr(one.self_attn, "sliding_window", None) for one in model.model.layers):
        return f"its layers ({config.model_type}) differ from those of Llama and Qwen2"
    if getattr(config, "attention_dropout", 0.0):
        return "its attention has dropout"
    if hasattr(layer.self_attn, "q_norm"):
        return "it norms queries and keys"
    plain = (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    return "it has biases after attention" if any(module.bias is not None for module in plain) else None


class FusedStack:
    """`model` is a causal language model of transformers for which `reason_against` found nothing."""

    def __init__(self, model: Any):
        self.model = model
        self.weights = Weights(model)
        self.kept = Kept()
        self._tables: tuple[Tensor, Tensor] | None = None

    def update(self) -> None:
        """Look up where the parameters are now: something may have moved them."""
        self.weights.update()

    def hidden(self, ids: Tensor, positions: Tensor, lengths: list[int], offsets: Tensor, places: Tensor | None = None) -> Tensor:
        """The last hidden states of all tokens of a packed row, or of those at `places` (each at most once)."""
        inner, shape, layers = self.model.model, self.weights.shape, self.weights.layers
        cos, sin = self._rotations(max(lengths))
        frame = Frame(lengths, offsets, positions, cos, sin, shape.heads, shape.kv_heads, shape.head_dim, shape.eps)
        x, delta = embedding(ids, inner.embed_tokens.weight, inner.embed_tokens.padding_idx), None
        for number, (layer, module) in enumerate(zip(layers, inner.layers, strict=True)):
            left = len(layers) - number
            chosen = places if left == 1 else None
            x, delta = AttentionHalf.apply(x, delta, layer, frame, left <= self.kept.attention, chosen, *_attention(module))
            x, delta = MlpHalf.apply(x, delta, layer, shape.eps, left <= self.kept.mlp, *_mlp(module))
        out: Tensor = LastNorm.apply(x, delta, inner.norm.weight, shape.eps)
        return out

    def _rotations(self, longest: int) -> tuple[Tensor, Tensor]:
        if self._tables is None or len(self._tables[0]) < longest:
            size = 1 << max(longest - 1, 1023).bit_length()
            with torch.no_grad():
                self._tables = self.weights.rotations(size)[0]
        return self._tables


def _attention(module: Any) -> list[Tensor]:
    """The parameters of the first half, in the order in which it returns their gradients."""
    own = module.self_attn
    linears = (own.q_proj, own.k_proj, own.v_proj)
    biases = [layer.bias for layer in linears if layer.bias is not None]
    return [module.input_layernorm.weight, own.o_proj.weight, *(layer.weight for layer in linears), *biases]


def _mlp(module: Any) -> list[Tensor]:
    return [module.post_attention_layernorm.weight, module.mlp.down_proj.weight, module.mlp.gate_proj.weight, module.mlp.up_proj.weight]
