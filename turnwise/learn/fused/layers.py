"""The two halves of a layer as functions with a custom backward pass.

Each half takes the residual and what the half before it has to add, and gives the new residual and what it has to add itself, so that the
addition and the norm are one pass. The caller chooses what is kept for the backward pass: a half that keeps only the residual recomputes
its inside. Norms, rotations and activations are always recomputed, because reading them from memory would cost as much.

The weights come joined (query, key and value are one product, gate and up are one), as the native engine reads them; the parameters are
also arguments, because gradients belong to them. A parameter that a family does not have is None. Without joined weights (`SharedLayer`)
each pass joins the arguments. The factors of LoRA adapters follow the other parameters; a weight that is stored in 4 bits is unpacked for
each product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from turnwise.engines.native.weights import NO_ROTATION, Layer
from turnwise.learn.fused import eager
from turnwise.learn.fused.adapters import Factor, factors_of, multiply, pull, slopes
from turnwise.learn.fused.attention import Frame, attend, attend_backward
from turnwise.learn.fused.shared import Half, SharedLayer, attention_of, for_later, mlp_of

AnyLayer = Layer | SharedLayer


def operations(device: torch.device) -> Any:
    """The kernels of a device."""
    if device.type != "cuda":
        return eager
    from turnwise.learn.fused import kernels

    return kernels


class AttentionHalf(torch.autograd.Function):  # type: ignore[misc]
    """Norm, queries, keys and values, their norms, rotation, attention, output, its norm. With `places`, only those rows continue.

    Weights: the norm's, output, query, key, value, their three biases, the norms of query and key, the norm after attention; then the
    adapters' factors of output, and of query, key and value."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, given: AnyLayer, frame: Frame, keep: bool, places: Tensor | None, *weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ops, layer, own = operations(x.device), attention_of(given, weights), for_later(given, weights)
        last_factors, factors = factors_of(layer.out), factors_of(layer.qkv)
        total, normed, scales = ops.add_norm(x, delta, layer.before_attention, frame.eps)
        raw, qkv, mixed, state = _read(normed, layer, frame, factors)
        out = multiply(mixed if places is None else mixed[places], layer.out, last_factors)
        last, added = _after(out, layer.after_attention, frame.eps)
        inside = (*raw, qkv, mixed, *state) if keep else ()
        ctx.save_for_backward(total, scales, *own, *last, *inside)
        ctx.rest = given, frame, places, delta is not None, len(own), len(last), len(raw)
        ctx.factors = last_factors, factors
        return total if places is None else total[places], added

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor, out_grad: Tensor) -> tuple[Any, ...]:
        given, frame, places, has_delta, owns, lasts, raws = ctx.rest
        last_factors, factors = ctx.factors
        total, scales, *kept = ctx.saved_tensors
        layer, kept = attention_of(given, kept[:owns]), kept[owns:]
        last, kept = kept[:lasts], kept[lasts:]
        ops, wanted = operations(total.device), ctx.needs_input_grad[6:]
        out_grad, after = _after_backward(out_grad, last, layer.after_attention)
        normed = ops.add_norm(total, None, layer.before_attention, frame.eps)[1]
        raw, qkv, mixed, state = (
            (kept[:raws], kept[raws], kept[raws + 1], kept[raws + 2 :]) if kept else _read(normed, layer, frame, factors)
        )
        chosen = mixed if places is None else mixed[places]
        out_weight = out_grad.t() @ chosen if wanted[1] else None
        mixed_grad, inner = pull(out_grad, layer.out, last_factors)
        more = slopes(out_grad, chosen, inner, last_factors)
        if places is not None:
            total_grad, mixed_grad = _spread(total_grad, places, len(total)), _spread(mixed_grad, places, len(total))
        parts = attend_backward(mixed_grad, qkv, mixed, state, frame, layer.window)
        del mixed, chosen, mixed_grad, qkv, state, kept
        qkv_grad, head_norms = _read_backward(parts, raw, layer, frame)
        del parts, raw
        sizes = [frame.heads * frame.size, frame.kv_heads * frame.size, frame.kv_heads * frame.size]
        joined = (qkv_grad.t() @ normed).split(sizes) if any(wanted[2:5]) else (None,) * 3
        biases = qkv_grad.sum(0).split(sizes) if any(wanted[5:8]) else (None,) * 3
        normed_grad, inner = pull(qkv_grad, layer.qkv, factors)
        more += slopes(qkv_grad, normed, inner, factors)
        x_grad, norm = ops.norm_backward(normed_grad, total_grad, total, scales, layer.before_attention)
        found = _slopes([norm, out_weight, *joined, *biases, *head_norms, after], total.dtype, more, wanted)
        return x_grad, x_grad if has_delta else None, None, None, None, None, *found


def _slopes(found: list[Tensor | None], dtype: torch.dtype, more: list[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
    """Gradients in the weights' dtype, and those of adapters, which have their own; None where nobody asked for one."""
    cast = [None if one is None or not asked else one.to(dtype) for one, asked in zip(found, wanted, strict=False)]
    return [*cast, *(one if asked else None for one, asked in zip(more, wanted[len(found) :], strict=True))]


def _read(normed: Tensor, layer: Layer | Half, frame: Frame, factors: Sequence[Factor]) -> tuple[tuple[Tensor, ...], Tensor, Tensor, Any]:
    """What heads were before their norms (if they have any), normed and rotated queries and keys with values, what was read with them, and
    what the backward pass of attention needs."""
    ops, sizes = operations(normed.device), (frame.heads, frame.kv_heads, frame.size)
    qkv = multiply(normed, layer.qkv, factors)
    raw: tuple[Tensor, ...] = ()
    if layer.q_norm is not None:
        raw = (qkv,)
        qkv = ops.norm_heads(qkv, layer.q_norm, layer.k_norm, *sizes, frame.eps)
    if layer.rotation != NO_ROTATION:
        ops.rotate(qkv, frame.cos[layer.rotation], frame.sin[layer.rotation], frame.positions, *sizes)
    return raw, qkv, *attend(qkv, frame, layer.window)


def _read_backward(
    parts: tuple[Tensor, Tensor, Tensor], raw: Any, layer: Layer | Half, frame: Frame
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
    """The gradient of the product that gave queries, keys and values; and those of the norms of heads."""
    ops = operations(parts[0].device)
    if layer.rotation == NO_ROTATION:
        grad = torch.cat([part.flatten(1) for part in parts], 1)
    else:
        turns = frame.cos[layer.rotation], frame.sin[layer.rotation]
        grad = ops.rotate_back(*(part.contiguous() for part in parts), *turns, frame.positions)
    if layer.q_norm is None:
        return grad, (None, None)
    sizes = frame.heads, frame.kv_heads, frame.size
    grad, query, key = ops.norm_heads_backward(grad, *raw, layer.q_norm, layer.k_norm, *sizes, frame.eps)
    return grad, (query, key)


def _after(out: Tensor, weight: Tensor | None, eps: float) -> tuple[tuple[Tensor, ...], Tensor]:
    """The norm of what a half adds, if it has one: what its backward pass needs, and the result."""
    if weight is None:
        return (), out
    _, normed, scales = operations(out.device).add_norm(out, None, weight, eps)
    return (out, scales), normed


def _after_backward(grad: Tensor, last: Any, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if weight is None:
        return grad, None
    out, scales = last
    found: tuple[Tensor, Tensor] = operations(grad.device).norm_backward(grad.contiguous(), None, out, scales, weight)
    return found


def _spread(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """The gradient of some rows as one of all rows."""
    return rows.new_zeros(count, rows.shape[1]).index_copy_(0, places, rows)


class MlpHalf(torch.autograd.Function):  # type: ignore[misc]
    """Norm, gate and up, activation, down, its norm. Weights: the norm's, down, gate, up, the norm after it; then the adapters' factors of
    down, and of gate and up."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, given: AnyLayer, eps: float, kind: str, keep: bool, *weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ops, layer, own = operations(x.device), mlp_of(given, weights), for_later(given, weights)
        last_factors, factors = factors_of(layer.down), factors_of(layer.gate_up)
        total, normed, scales = ops.add_norm(x, delta, layer.before_mlp, eps)
        both = multiply(normed, layer.gate_up, factors)
        last, added = _after(multiply(ops.swiglu(both, kind), layer.down, last_factors), layer.after_mlp, eps)
        ctx.save_for_backward(total, scales, *own, *last, *((both,) if keep else ()))
        ctx.rest = given, eps, kind, len(own), len(last)
        ctx.factors = last_factors, factors
        return total, added

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor, out_grad: Tensor) -> tuple[Any, ...]:
        given, eps, kind, owns, lasts = ctx.rest
        last_factors, factors = ctx.factors
        total, scales, *kept = ctx.saved_tensors
        layer, kept = mlp_of(given, kept[:owns]), kept[owns:]
        last, kept = kept[:lasts], kept[lasts:]
        ops, wanted = operations(total.device), ctx.needs_input_grad[6:]
        out_grad, after = _after_backward(out_grad, last, layer.after_mlp)
        normed = ops.add_norm(total, None, layer.before_mlp, eps)[1]
        both = kept[0] if kept else multiply(normed, layer.gate_up, factors)
        active_grad, inner = pull(out_grad, layer.down, last_factors)
        both_grad, active = ops.swiglu_backward(both, active_grad, kind)
        more = slopes(out_grad, active, inner, last_factors)
        down = out_grad.t() @ active if wanted[1] else None
        del both, kept, active, active_grad
        joined = (both_grad.t() @ normed).chunk(2) if any(wanted[2:4]) else (None, None)
        normed_grad, inner = pull(both_grad, layer.gate_up, factors)
        more += slopes(both_grad, normed, inner, factors)
        x_grad, norm = ops.norm_backward(normed_grad, total_grad, total, scales, layer.before_mlp)
        return x_grad, x_grad, None, None, None, None, *_slopes([norm, down, *joined, after], total.dtype, more, wanted)


class LastNorm(torch.autograd.Function):  # type: ignore[misc]
    """The norm after the last layer. `factor` is what it multiplies by, `weight` the parameter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor, weight: Tensor, factor: Tensor, eps: float) -> Tensor:
        total, normed, scales = operations(x.device).add_norm(x, delta, factor, eps)
        ctx.save_for_backward(total, scales, weight, factor)
        out: Tensor = normed
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        total, scales, weight, factor = ctx.saved_tensors
        x_grad, norm = operations(total.device).norm_backward(grad.contiguous(), None, total, scales, factor)
        return x_grad, x_grad, norm.to(weight.dtype), None, None
