"""The second half of a layer whose MLP is a mixture of experts, with a custom backward pass.

The choice of experts has no gradient; how much each of them counts has one, and it reaches the router through the softmax over all
experts. Which expert reads which token is always kept: a recomputed router could choose differently where two are almost equal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from turnwise.engines.native.weights import Layer
from turnwise.kernels.experts import Experts, Routing, filled, gathered, grouped, routing
from turnwise.learn.fused.layers import AnyLayer, operations
from turnwise.learn.fused.shared import Half, for_later, mlp_of


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
