"""The two halves of a layer as functions with a custom backward pass.

Each half takes the residual and what the half before it has to add, and gives the new residual and what it has to add itself, so that the
addition and the norm are one pass. The caller chooses what is kept for the backward pass: the residual alone, or also (`keep`) what the
half computes inside it, without norms, rotations and activations, which a pass over what is kept gives again.

The weights come joined (query, key and value are one product, gate and up are one), as the native engine reads them; the parameters are
also arguments, because gradients belong to them. A parameter that a family does not have is None. Without joined weights (no `Layer`)
each pass joins the arguments. The factors of LoRA adapters follow the other parameters; a weight that is stored in 4 bits is unpacked for
each product. Gradients of weights that have a buffer (`turnwise.learn.weights`) are added there.

Attention may have unused rows between sequences (`Frame.wide`). The output's product has them too: they are left out of what it gives, and
its gradient is 0 in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from turnwise.engines.native.weights import Layer
from turnwise.learn.fused import eager
from turnwise.learn.fused.adapters import Factor, factor_gradients, factors_of, input_gradient, multiply
from turnwise.learn.fused.attention import Frame, attend, attend_backward
from turnwise.learn.fused.sharded import Half, attention_of, for_later, mlp_of
from turnwise.learn.weights import GradientBuffer, buffer_of, buffers_of, joined, share, weight_gradients


def operations(device: torch.device) -> Any:
    """The kernels of a device."""
    if device.type != "cuda":
        return eager
    from turnwise.learn.fused import kernels

    return kernels


class AttentionHalf(torch.autograd.Function):  # type: ignore[misc]
    """Norm, queries, keys and values, their norms, rotation, attention, output. With `places`, only those rows continue.

    Weights: the norm's, output, query, key, value, their three biases, the norms of query and key; then the adapters' factors of output,
    and of query, key and value. Shapes: `x`, `delta`, `total` and `normed` are [tokens, hidden size], `scales` [tokens], `qkv`
    [rows, (heads + 2 · kv_heads) · head size], `mixed` [rows, heads · head size]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        delta: Tensor | None,
        given: Layer | None,
        frame: Frame,
        keep: bool,
        places: Tensor | None,
        *weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ops, layer, own = operations(x.device), attention_of(given, weights), for_later(given, weights)
        last_factors, factors = factors_of(layer.out), factors_of(layer.qkv)
        total, normed, scales = ops.add_norm(x, delta, layer.before_attention, frame.eps)
        raw, qkv, mixed, state = _read(normed, layer, frame, factors, places)
        rows = _rows(places, frame)
        out = multiply(mixed if rows is None else mixed.index_select(0, rows), layer.out, last_factors)
        if rows is None and frame.wide is not None:
            out = out.index_select(0, frame.wide.rows)
        inside = (*raw, qkv, mixed, *state) if keep else ()
        ctx.save_for_backward(total, scales, *own, *inside)
        ctx.rest = given, frame, places, delta is not None, len(own), len(raw)
        ctx.factors, ctx.buffers = (last_factors, factors), buffers_of(weights)
        return total if places is None else total.index_select(0, places), out

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor, out_grad: Tensor) -> tuple[Any, ...]:
        given, frame, places, has_delta, owns, raws = ctx.rest
        last_factors, factors = ctx.factors
        total, scales, *kept = ctx.saved_tensors
        layer, kept = attention_of(given, kept[:owns]), kept[owns:]
        ops, wanted = operations(total.device), ctx.needs_input_grad[6:]
        normed = ops.add_norm(total, None, layer.before_attention, frame.eps)[1]
        raw, qkv, mixed, state = (
            (kept[:raws], kept[raws], kept[raws + 1], kept[raws + 2 :]) if kept else _read(normed, layer, frame, factors, places)
        )
        rows, buffers = _rows(places, frame), ctx.buffers
        if rows is None and frame.wide is not None:
            out_grad = ops.widen(out_grad, frame.wide.tokens, frame.wide.rows)
        chosen = mixed if rows is None else mixed.index_select(0, rows)
        out_weight = weight_gradients(out_grad, chosen, [out_grad.shape[1]], wanted[1:2], buffers[1:2])
        mixed_grad, inner = input_gradient(out_grad, layer.out, last_factors)
        more = factor_gradients(out_grad, chosen, inner, last_factors)
        if places is not None:
            total_grad = _spread(total_grad, places, len(total))
        if rows is not None:
            mixed_grad = _spread(mixed_grad, rows, len(mixed))
        parts = attend_backward(mixed_grad, qkv, mixed, state, frame, places)
        del mixed, chosen, mixed_grad, qkv, state, kept
        qkv_grad, sums, head_norms = _read_backward(parts, raw, layer, frame, any(wanted[5:8]))
        del parts, raw
        sizes = [frame.heads * frame.size, frame.kv_heads * frame.size, frame.kv_heads * frame.size]
        joint = weight_gradients(qkv_grad, normed, sizes, wanted[2:5], buffers[2:5])
        biases = _bias_gradients(sums, sizes, wanted[5:8], buffers[5:8])
        normed_grad, inner = input_gradient(qkv_grad, layer.qkv, factors)
        more += factor_gradients(qkv_grad, normed, inner, factors)
        x_grad, norm = _norm_backward(normed_grad, total_grad, total, scales, layer.before_attention, wanted[0], buffers[0])
        found = _in_dtype([norm, *out_weight, *joint, *biases, *head_norms], total.dtype, more, wanted)
        return x_grad, x_grad if has_delta else None, None, None, None, None, *found


def _rows(places: Tensor | None, frame: Frame) -> Tensor | None:
    """The rows of some tokens in what attention gives; None if all are meant."""
    if places is None or not frame.runs:  # without calls of several sequences, it gives these alone
        return None
    return places if frame.wide is None else frame.wide.rows[places]


def _bias_gradients(
    parts: Tensor | None, sizes: Sequence[int], wanted: Sequence[bool], buffers: Sequence[GradientBuffer | None]
) -> list[Tensor | None]:
    """The sum of rows as gradients of biases of these sizes; None for those that have a buffer, where it is added."""
    if parts is None:
        return [None] * len(sizes)
    ops, known = operations(parts.device), [buffer for buffer in buffers if buffer is not None]
    if len(known) < len(buffers) or not all(wanted):
        return list(ops.fold(parts).split(sizes))
    before = joined([buffer.sum for buffer in known])
    found = ops.fold(parts, before)
    if before is None:
        share(known, sizes, found)
    return [None] * len(sizes)


def _norm_backward(
    grad: Tensor, more: Tensor | None, x: Tensor, scales: Tensor, weight: Tensor, wanted: bool, buffer: GradientBuffer | None
) -> tuple[Tensor, Tensor | None]:
    """As the kernel. The gradient of a weight that has a buffer is added there, and None stands for it."""
    ops = operations(x.device)
    if buffer is None or not wanted:
        found: tuple[Tensor, Tensor] = ops.norm_backward(grad, more, x, scales, weight)
        return found
    before = buffer.sum
    x_grad, own = ops.norm_backward(grad, more, x, scales, weight, before)
    if before is None:
        buffer.put(own)
    return x_grad, None


def _in_dtype(found: list[Tensor | None], dtype: torch.dtype, more: list[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
    """Gradients in the weights' dtype, and those of adapters, which have their own; None where nobody asked for one."""
    cast = [None if one is None or not asked else one.to(dtype) for one, asked in zip(found, wanted, strict=False)]
    return [*cast, *(one if asked else None for one, asked in zip(more, wanted[len(found) :], strict=True))]


def _read(
    normed: Tensor, layer: Layer | Half, frame: Frame, factors: Sequence[Factor], places: Tensor | None
) -> tuple[tuple[Tensor, ...], Tensor, Tensor, Any]:
    """What heads were before their norms (if they have any); normed and rotated queries and keys with values, what was read with them, and
    what the backward pass of attention needs: those have the rows of attention."""
    ops, sizes = operations(normed.device), (frame.heads, frame.kv_heads, frame.size)
    qkv = multiply(normed, layer.qkv, factors)
    raw: tuple[Tensor, ...] = ()
    if layer.q_norm is not None:
        raw = (qkv,)
        qkv = ops.norm_heads(qkv, layer.q_norm, layer.k_norm, *sizes, frame.eps)
    tokens = None if frame.wide is None else frame.wide.tokens
    qkv = ops.rotate(qkv, frame.cos, frame.sin, frame.positions, *sizes, tokens)
    return raw, qkv, *attend(qkv, frame, places)


def _read_backward(
    parts: tuple[Tensor, Tensor, Tensor], raw: Any, layer: Layer | Half, frame: Frame, biased: bool
) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, Tensor | None]]:
    """The gradient of the product that gave queries, keys and values; what its biases' gradients are the sum of, if those are wanted; and
    the gradients of the norms of heads."""
    ops, rows = operations(parts[0].device), None if frame.wide is None else frame.wide.rows
    grad, sums = ops.rotate_back(*parts, frame.cos, frame.sin, frame.positions, rows, biased and layer.q_norm is None)
    if layer.q_norm is None:
        return grad, sums, (None, None)
    sizes = frame.heads, frame.kv_heads, frame.size
    grad, query, key = ops.norm_heads_backward(grad, *raw, layer.q_norm, layer.k_norm, *sizes, frame.eps)
    return grad, grad if biased else None, (query, key)


def _spread(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """The gradient of some rows as one of all rows."""
    return rows.new_zeros(count, rows.shape[1]).index_copy_(0, places, rows)


class MlpHalf(torch.autograd.Function):  # type: ignore[misc]
    """Norm, gate and up, activation, down. Weights: the norm's, down, gate, up; then the adapters' factors of down, and of gate and up.
    Shapes: `x`, `delta`, `total` and `normed` are [tokens, hidden size], `both` (gate and up) [tokens, 2 · intermediate size], `active`
    [tokens, intermediate size]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, given: Layer | None, eps: float, kind: str, keep: bool, *weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ops, layer, own = operations(x.device), mlp_of(given, weights), for_later(given, weights)
        last_factors, factors = factors_of(layer.down), factors_of(layer.gate_up)
        total, normed, scales = ops.add_norm(x, delta, layer.before_mlp, eps)
        if keep or factors:
            both = multiply(normed, layer.gate_up, factors)
            active = ops.swiglu(both, kind)
        else:
            both, active = None, ops.gated(normed, layer.gate_up.weight, kind)
        ctx.save_for_backward(total, scales, *own, *((both,) if keep else ()))
        ctx.rest = given, eps, kind, len(own)
        ctx.factors, ctx.buffers = (last_factors, factors), buffers_of(weights)
        return total, multiply(active, layer.down, last_factors)

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor, out_grad: Tensor) -> tuple[Any, ...]:
        given, eps, kind, owns = ctx.rest
        last_factors, factors = ctx.factors
        total, scales, *kept = ctx.saved_tensors
        layer, kept = mlp_of(given, kept[:owns]), kept[owns:]
        ops, wanted, buffers = operations(total.device), ctx.needs_input_grad[6:], ctx.buffers
        normed = ops.add_norm(total, None, layer.before_mlp, eps)[1]
        both = kept[0] if kept else multiply(normed, layer.gate_up, factors)
        active_grad, inner = input_gradient(out_grad, layer.down, last_factors)
        both_grad, active = ops.swiglu_backward(both, active_grad, kind)
        more = factor_gradients(out_grad, active, inner, last_factors)
        down = weight_gradients(out_grad, active, [out_grad.shape[1]], wanted[1:2], buffers[1:2])
        del both, kept, active, active_grad
        joint = weight_gradients(both_grad, normed, [both_grad.shape[1] // 2] * 2, wanted[2:4], buffers[2:4])
        normed_grad, inner = input_gradient(both_grad, layer.gate_up, factors)
        more += factor_gradients(both_grad, normed, inner, factors)
        x_grad, norm = _norm_backward(normed_grad, total_grad, total, scales, layer.before_mlp, wanted[0], buffers[0])
        return x_grad, x_grad, None, None, None, None, *_in_dtype([norm, *down, *joint], total.dtype, more, wanted)


class Embedding(torch.autograd.Function):  # type: ignore[misc]
    """Rows of a weight that has a buffer, where their gradients are added: no other row is read or written. `hidden`: the id of a token
    whose row is not learned; None: there is none."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, hidden: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rest = buffer_of(weight), weight.shape, hidden
        return embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (ids,), (buffer, shape, hidden) = ctx.saved_tensors, ctx.rest
        if buffer.sum is None:
            buffer.put(torch.zeros(shape, dtype=torch.float32, device=grad.device))
        own = grad.float() if hidden is None else grad.float() * (ids != hidden)[:, None]
        buffer.sum.index_add_(0, ids, own)
        return None, None, None


class LastNorm(torch.autograd.Function):  # type: ignore[misc]
    """The norm after the last layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        total, normed, scales = operations(x.device).add_norm(x, delta, weight, eps)
        ctx.save_for_backward(total, scales, weight)
        ctx.buffer = buffer_of(weight)
        out: Tensor = normed
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        total, scales, weight = ctx.saved_tensors
        x_grad, norm = _norm_backward(grad.contiguous(), None, total, scales, weight, ctx.needs_input_grad[2], ctx.buffer)
        return x_grad, x_grad, None if norm is None else norm.to(weight.dtype), None
