"""The two halves of a layer as functions with a custom backward pass.

Each half takes the residual and what the half before it has to add, and gives the new residual and what it has to add itself, so that the
addition and the norm are one pass. The caller chooses what is kept for the backward pass: the residual alone, or also (`keep`) what the
half computes inside it, without norms, rotations and activations, which a pass over what is kept gives again.

The weights come joined (query, key and value are one product, gate and up are one), as the native engine reads them; the parameters are
also arguments, because gradients belong to them. A parameter that a family does not have is None. Without joined weights (`ShardedLayer`)
each pass joins the arguments. The factors of LoRA adapters follow the other parameters; a weight that is stored in 4 bits is unpacked for
each product. Gradients of weights that have a buffer (`turnwise.learn.weights`) are added there.

Attention may have unused rows between sequences (`Frame.padded_for`). The output's product has them too: they are left out of what it
gives, and its gradient is 0 in them.

In a mixture of experts (`ExpertsHalf`) the choice of experts has no gradient; how much each of them counts has one, and it reaches the
router through the softmax over all experts. Which expert reads which token is always kept: a recomputed router could choose differently
where two are almost equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from turnwise.engines.native.weights import NO_ROTATION, Layer
from turnwise.kernels.experts import Experts, Routing, filled, gathered, grouped, routing
from turnwise.learn.fused import eager
from turnwise.learn.fused.adapters import Factor, factor_gradients, factors_of, input_gradient, multiply
from turnwise.learn.fused.attention import Frame, attend, attend_backward
from turnwise.learn.fused.sharded import Half, ShardedLayer, attention_of, for_later, mlp_of
from turnwise.learn.weights import GradientBuffer, buffer_of, buffers_of, joined, share, weight_gradients

AnyLayer = Layer | ShardedLayer


def operations(device: torch.device) -> Any:
    """The kernels of a device."""
    if device.type != "cuda":
        return eager
    from turnwise.learn.fused import kernels

    return kernels


class AttentionHalf(torch.autograd.Function):  # type: ignore[misc]
    """Norm, queries, keys and values, their norms, rotation, attention, output, its norm. With `places`, only those rows continue.

    Weights: the norm's, output, query, key, value, their three biases, the norms of query and key, the norm after attention; then the
    adapters' factors of output, and of query, key and value. Shapes: `x`, `delta`, `total` and `normed` are [tokens, hidden size], `scales`
    [tokens], `qkv` [rows, (heads + 2 · kv_heads) · head size], `mixed` [rows, heads · head size]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, given: AnyLayer, frame: Frame, keep: bool, places: Tensor | None, *weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ops, layer, own = operations(x.device), attention_of(given, weights), for_later(given, weights)
        last_factors, factors = factors_of(layer.out), factors_of(layer.qkv)
        total, normed, scales = ops.add_norm(x, delta, layer.before_attention, frame.eps)
        raw, qkv, mixed, state = _read(normed, layer, frame, factors, places)
        wide, rows = frame.padded_for(layer.window), _rows(places, frame, layer.window)
        out = multiply(mixed if rows is None else mixed.index_select(0, rows), layer.out, last_factors)
        if rows is None and wide is not None:
            out = out.index_select(0, wide.rows)
        last, added = _after(out, layer.after_attention, frame.eps)
        inside = (*raw, qkv, mixed, *state) if keep else ()
        ctx.save_for_backward(total, scales, *own, *last, *inside)
        ctx.rest = given, frame, places, delta is not None, len(own), len(last), len(raw)
        ctx.factors, ctx.buffers = (last_factors, factors), buffers_of(weights)
        return total if places is None else total.index_select(0, places), added

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
            (kept[:raws], kept[raws], kept[raws + 1], kept[raws + 2 :]) if kept else _read(normed, layer, frame, factors, places)
        )
        wide, rows, buffers = frame.padded_for(layer.window), _rows(places, frame, layer.window), ctx.buffers
        if rows is None and wide is not None:
            out_grad = ops.widen(out_grad, wide.tokens, wide.rows)
        chosen = mixed if rows is None else mixed.index_select(0, rows)
        out_weight = weight_gradients(out_grad, chosen, [out_grad.shape[1]], wanted[1:2], buffers[1:2])
        mixed_grad, inner = input_gradient(out_grad, layer.out, last_factors)
        more = factor_gradients(out_grad, chosen, inner, last_factors)
        if places is not None:
            total_grad = _spread(total_grad, places, len(total))
        if rows is not None:
            mixed_grad = _spread(mixed_grad, rows, len(mixed))
        parts = attend_backward(mixed_grad, qkv, mixed, state, frame, layer.window, places)
        del mixed, chosen, mixed_grad, qkv, state, kept
        qkv_grad, sums, head_norms = _read_backward(parts, raw, layer, frame, any(wanted[5:8]))
        del parts, raw
        sizes = [frame.heads * frame.size, frame.kv_heads * frame.size, frame.kv_heads * frame.size]
        joint = weight_gradients(qkv_grad, normed, sizes, wanted[2:5], buffers[2:5])
        biases = _bias_gradients(sums, sizes, wanted[5:8], buffers[5:8])
        normed_grad, inner = input_gradient(qkv_grad, layer.qkv, factors)
        more += factor_gradients(qkv_grad, normed, inner, factors)
        x_grad, norm = _norm_backward(normed_grad, total_grad, total, scales, layer.before_attention, wanted[0], buffers[0])
        found = _in_dtype([norm, *out_weight, *joint, *biases, *head_norms, after], total.dtype, more, wanted)
        return x_grad, x_grad if has_delta else None, None, None, None, None, *found


def _rows(places: Tensor | None, frame: Frame, window: int) -> Tensor | None:
    """The rows of some tokens in what attention gives; None if all are meant."""
    if places is None or not frame.runs_for(window):  # without calls of several sequences, it gives these alone
        return None
    wide = frame.padded_for(window)
    return places if wide is None else wide.rows[places]


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
    ops, sizes, wide = operations(normed.device), (frame.heads, frame.kv_heads, frame.size), frame.padded_for(layer.window)
    qkv = multiply(normed, layer.qkv, factors)
    raw: tuple[Tensor, ...] = ()
    if layer.q_norm is not None:
        raw = (qkv,)
        qkv = ops.norm_heads(qkv, layer.q_norm, layer.k_norm, *sizes, frame.eps)
    tokens = None if wide is None else wide.tokens
    if layer.rotation != NO_ROTATION:
        qkv = ops.rotate(qkv, frame.cos[layer.rotation], frame.sin[layer.rotation], frame.positions, *sizes, tokens)
    elif tokens is not None:
        qkv = qkv.index_select(0, tokens)
    return raw, qkv, *attend(qkv, frame, layer.window, places)


def _read_backward(
    parts: tuple[Tensor, Tensor, Tensor], raw: Any, layer: Layer | Half, frame: Frame, biased: bool
) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, Tensor | None]]:
    """The gradient of the product that gave queries, keys and values; what its biases' gradients are the sum of, if those are wanted; and
    the gradients of the norms of heads."""
    ops, wide, sums = operations(parts[0].device), frame.padded_for(layer.window), None
    rows = None if wide is None else wide.rows
    if layer.rotation == NO_ROTATION:
        grad = torch.cat([part.flatten(1) for part in parts], 1)
        grad = grad if rows is None else grad.index_select(0, rows)
    else:
        turns, summed = (frame.cos[layer.rotation], frame.sin[layer.rotation]), biased and layer.q_norm is None
        grad, sums = ops.rotate_back(*parts, *turns, frame.positions, rows, summed)
    if layer.q_norm is None:
        return grad, grad if biased and sums is None else sums, (None, None)
    sizes = frame.heads, frame.kv_heads, frame.size
    grad, query, key = ops.norm_heads_backward(grad, *raw, layer.q_norm, layer.k_norm, *sizes, frame.eps)
    return grad, grad if biased else None, (query, key)


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
    down, and of gate and up. Shapes: `x`, `delta`, `total` and `normed` are [tokens, hidden size], `both` (gate and up) [tokens, 2 ·
    intermediate size], `active` [tokens, intermediate size]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, given: AnyLayer, eps: float, kind: str, keep: bool, *weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ops, layer, own = operations(x.device), mlp_of(given, weights), for_later(given, weights)
        last_factors, factors = factors_of(layer.down), factors_of(layer.gate_up)
        total, normed, scales = ops.add_norm(x, delta, layer.before_mlp, eps)
        if keep or factors:
            both = multiply(normed, layer.gate_up, factors)
            active = ops.swiglu(both, kind)
        else:
            both, active = None, ops.gated(normed, layer.gate_up.weight, kind)
        last, added = _after(multiply(active, layer.down, last_factors), layer.after_mlp, eps)
        ctx.save_for_backward(total, scales, *own, *last, *((both,) if keep else ()))
        ctx.rest = given, eps, kind, len(own), len(last)
        ctx.factors, ctx.buffers = (last_factors, factors), buffers_of(weights)
        return total, added

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor, out_grad: Tensor) -> tuple[Any, ...]:
        given, eps, kind, owns, lasts = ctx.rest
        last_factors, factors = ctx.factors
        total, scales, *kept = ctx.saved_tensors
        layer, kept = mlp_of(given, kept[:owns]), kept[owns:]
        last, kept = kept[:lasts], kept[lasts:]
        ops, wanted, buffers = operations(total.device), ctx.needs_input_grad[6:], ctx.buffers
        out_grad, after = _after_backward(out_grad, last, layer.after_mlp)
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
        return x_grad, x_grad, None, None, None, None, *_in_dtype([norm, *down, *joint, after], total.dtype, more, wanted)


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
    """The norm after the last layer. `factor` is what it multiplies by, `weight` the parameter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor, weight: Tensor, factor: Tensor, eps: float) -> Tensor:
        total, normed, scales = operations(x.device).add_norm(x, delta, factor, eps)
        ctx.save_for_backward(total, scales, weight, factor)
        ctx.buffer = buffer_of(weight)
        out: Tensor = normed
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        total, scales, weight, factor = ctx.saved_tensors
        x_grad, norm = _norm_backward(grad.contiguous(), None, total, scales, factor, ctx.needs_input_grad[2], ctx.buffer)
        return x_grad, x_grad, None if norm is None else norm.to(weight.dtype), None, None


class ExpertsHalf(torch.autograd.Function):  # type: ignore[misc]
    """Norm, router, the chosen experts. Weights: the norm's, the router's, the experts' gate and up, their down."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, given: AnyLayer, eps: float, kind: str, keep: bool, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        ops, layer, own = operations(x.device), mlp_of(given, weights), for_later(given, weights)
        experts = _of(layer)
        total, normed, scales = ops.add_norm(x, delta, layer.before_mlp, eps)
        chances = linear(normed, experts.router).softmax(-1, dtype=_exact(normed.dtype))
        chosen = chances.topk(experts.choices, dim=-1).indices
        plan = routing(chosen, _counts(chances, chosen, experts.normed).to(x.dtype), len(experts.router))
        both = grouped(normed[plan.tokens], experts.gate_up, plan.offsets)
        out = gathered(grouped(ops.swiglu(both, kind), experts.down, plan.offsets), plan)
        routed = chances, chosen, plan.order, plan.offsets, plan.weights
        ctx.save_for_backward(total, scales, *routed, *own, *((both,) if keep else ()))
        ctx.rest = given, eps, kind, len(own)
        return total, out

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor, out_grad: Tensor) -> tuple[Any, ...]:
        given, eps, kind, owns = ctx.rest
        total, scales, chances, chosen, order, offsets, counts, *kept = ctx.saved_tensors
        layer, kept = mlp_of(given, kept[:owns]), kept[owns:]
        ops, experts, wanted = operations(total.device), _of(layer), ctx.needs_input_grad[6:]
        plan = Routing(order, order // chosen.shape[1], offsets, counts)
        normed = ops.add_norm(total, None, layer.before_mlp, eps)[1]
        rows = normed[plan.tokens]
        both = kept[0] if kept else grouped(rows, experts.gate_up, offsets)
        pull = out_grad[plan.tokens]
        active_grad = grouped(pull, experts.down.transpose(1, 2), offsets)
        count_grad = (active_grad * ops.swiglu(both, kind)).sum(-1, dtype=_exact(total.dtype))
        count = counts.flatten()[order][:, None]
        both_grad, active = ops.swiglu_backward(both, active_grad * count, kind)
        down = _outer(pull * count, active, offsets) if wanted[3] else None
        gate_up = _outer(both_grad, rows, offsets) if wanted[2] else None
        normed_grad = _back(grouped(both_grad, experts.gate_up.transpose(1, 2), offsets), plan).sum(1)
        logit_grad = _router_backward(_back(count_grad, plan), chances, chosen, experts.normed).to(total.dtype)
        router = logit_grad.t() @ normed if wanted[1] else None
        x_grad, norm = ops.norm_backward(normed_grad + logit_grad @ experts.router, total_grad, total, scales, layer.before_mlp)
        return x_grad, x_grad, None, None, None, None, norm.to(total.dtype) if wanted[0] else None, router, gate_up, down


def _of(layer: Layer | Half) -> Experts:
    assert layer.experts is not None
    return layer.experts


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _counts(chances: Tensor, chosen: Tensor, normed: bool) -> Tensor:
    """How much each chosen expert counts."""
    found = chances.gather(-1, chosen)
    return found / found.sum(-1, keepdim=True) if normed else found


def _router_backward(grad: Tensor, chances: Tensor, chosen: Tensor, normed: bool) -> Tensor:
    """The gradient of the router's logits if that of the counts is `grad`."""
    if normed:
        found = chances.gather(-1, chosen)
        whole = found.sum(-1, keepdim=True)
        grad = (grad - (grad * found).sum(-1, keepdim=True) / whole) / whole
    slope = torch.zeros_like(chances).scatter_(-1, chosen, grad.to(chances.dtype))
    return chances * (slope - (slope * chances).sum(-1, keepdim=True))


def _back(rows: Tensor, plan: Routing) -> Tensor:
    """Rows in the order of (token, choice) again: [tokens, choices, …]."""
    return torch.empty_like(rows).index_copy_(0, plan.order, rows).view(*plan.weights.shape, *rows.shape[1:])


def _outer(left: Tensor, right: Tensor, offsets: Tensor) -> Tensor:
    """leftᵀ · right of every group of rows: [groups, left, right]."""
    if left.is_cuda:
        product: Tensor = torch.nn.functional.grouped_mm(left.t(), right, offs=offsets)
        return product
    out = left.new_zeros(len(offsets), left.shape[1], right.shape[1])
    for group, start, end in filled(offsets):
        torch.mm(left[start:end].t(), right[start:end], out=out[group])
    return out
