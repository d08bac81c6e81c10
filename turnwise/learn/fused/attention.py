"""Causal attention inside each sequence of a packed row, and its gradient.

On a GPU torch's own variable-length kernel, called so that several query heads read one key head as it lies, and reads queries, keys and
values where the matrix product put them. Elsewhere one sequence after another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class Frame:
    """What all layers share: where sequences lie in the row, where each token stands in its own, the rotations, and the heads."""

    lengths: list[int]
    offsets: Tensor  # int32: where sequences start, one entry more than sequences
    positions: Tensor  # int64: each token's place in its sequence
    cos: Tensor
    sin: Tensor
    heads: int
    kv_heads: int
    size: int
    eps: float

    @property
    def scale(self) -> float:
        """Of the products of queries and keys."""
        scale: float = self.size**-0.5
        return scale

    def cut(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [tokens, heads, size] each, as views."""
        queries, keys, values = qkv.view(len(qkv), -1, self.size).split([self.heads, self.kv_heads, self.kv_heads], 1)
        return queries, keys, values


def attend(qkv: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
    """What every token reads, [tokens, heads × size], and what the way back needs beside it."""
    q, k, v = frame.cut(qkv)
    if not qkv.is_cuda:
        return torch.cat([_one(*part, frame) for part in _parts(q, k, v, frame)]).flatten(1), qkv.new_empty(0)
    longest = max(frame.lengths)
    out, normaliser, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, frame.offsets, frame.offsets, longest, longest, 0.0, True, False, scale=frame.scale
    )
    return out.flatten(1), normaliser


def attend_backward(grad: Tensor, qkv: Tensor, out: Tensor, normaliser: Tensor, frame: Frame) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    q, k, v = frame.cut(qkv)
    grad, out = (x.view(len(qkv), frame.heads, frame.size) for x in (grad, out))
    if not qkv.is_cuda:
        return _one_by_one_backward(grad, q, k, v, frame)
    longest = max(frame.lengths)
    no_chance = torch.zeros(2, dtype=torch.uint64, device=qkv.device)  # there is no dropout to repeat
    nothing = torch.empty(0, device=qkv.device)
    d_q, d_k, d_v = torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, normaliser, frame.offsets, frame.offsets, longest, longest, 0.0, True, no_chance, nothing, scale=frame.scale
    )
    return d_q, d_k, d_v


def _parts(q: Tensor, k: Tensor, v: Tensor, frame: Frame) -> zip[tuple[Tensor, ...]]:
    return zip(*(x.split(frame.lengths) for x in (q, k, v)), strict=True)


def _one(q: Tensor, k: Tensor, v: Tensor, frame: Frame) -> Tensor:
    rows = (x.transpose(0, 1)[None] for x in (q, k, v))
    out: Tensor = scaled_dot_product_attention(*rows, is_causal=True, scale=frame.scale, enable_gqa=frame.heads != frame.kv_heads)
    return out[0].transpose(0, 1)


def _one_by_one_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, frame: Frame) -> tuple[Tensor, Tensor, Tensor]:
    found = []
    for slope, *part in zip(grad.split(frame.lengths), *(x.split(frame.lengths) for x in (q, k, v)), strict=True):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in part]
            out = _one(leaves[0], leaves[1], leaves[2], frame)
        found.append(torch.autograd.grad(out, leaves, slope))
    d_q, d_k, d_v = (torch.cat(column) for column in zip(*found, strict=True))
    return d_q, d_k, d_v
