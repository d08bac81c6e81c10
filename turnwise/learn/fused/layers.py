"""The two halves of a layer as functions with a custom backward pass.

Each half takes the residual and what the half before it has to add, and gives the new residual and what it has to add itself, so that the
addition and the norm are one pass. The caller chooses what is kept for the backward pass: a half that keeps only the residual recomputes
its inside. Norms, rotations and activations are always recomputed, because reading them from memory would cost as much.

The weights come joined (query, key and value are one product, gate and up are one), as the native engine reads them; the parameters are
also arguments, because gradients belong to them. Without joined weights, each pass joins the parameters as they are then: several processes
that share a model have whole parameters only during a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from turnwise.engines.native.weights import Layer
from turnwise.learn.fused import eager
from turnwise.learn.fused.attention import Frame, attend, attend_backward


@dataclass(frozen=True, slots=True)
class Product:
    """A joined weight, and its bias or none."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """The weights of one half, from its parameters in the order in which it returns their gradients: norm, output, what is joined, and
    the biases of that."""

    norm: Tensor
    out: Product
    inner: Product

    @classmethod
    def of(cls, parameters: Sequence[Tensor], count: int) -> Joined:
        norm, out, *rest = (parameter.detach() for parameter in parameters)
        bias = torch.cat(rest[count:]) if rest[count:] else None
        return cls(norm, Product(out), Product(torch.cat(rest[:count]), bias))

    @property
    def before_attention(self) -> Tensor:
        return self.norm

    @property
    def before_mlp(self) -> Tensor:
        return self.norm

    @property
    def qkv(self) -> Product:
        return self.inner

    @property
    def gate_up(self) -> Product:
        return self.inner

    @property
    def down(self) -> Product:
        return self.out


def operations(device: torch.device) -> Any:
    """The kernels of a device."""
    if device.type != "cuda":
        return eager
    from turnwise.learn.fused import kernels

    return kernels


class AttentionHalf(torch.autograd.Function):  # type: ignore[misc]
    """Norm, queries, keys and values, rotation, attention, output. With `places`, only those rows continue."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, given: Layer | None, frame: Frame, keep: bool, places: Tensor | None, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        ops, layer = operations(x.device), given or Joined.of(weights, 3)
        total, normed, scales = ops.add_norm(x, delta, layer.before_attention, frame.eps)
        qkv, mixed, state = _read(normed, layer, frame)
        own = () if given is not None else weights
        ctx.save_for_backward(total, scales, *own, *((qkv, mixed, *state) if keep else ()))
        ctx.rest = given, len(own), frame, places, delta is not None
        ctx.sizes = [len(weight) for weight in weights[2:5]]
        if places is None:
            return total, linear(mixed, layer.out.weight)
        return total[places], linear(mixed[places], layer.out.weight)

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor, out_grad: Tensor) -> tuple[Any, ...]:
        given, count, frame, places, has_delta = ctx.rest
        total, scales, *kept = ctx.saved_tensors
        ops, layer = operations(total.device), given or Joined.of(kept[:count], 3)
        del kept[:count]
        normed = ops.add_norm(total, None, layer.before_attention, frame.eps)[1]
        qkv, mixed, state = (kept[0], kept[1], kept[2:]) if kept else _read(normed, layer, frame)
        wanted = ctx.needs_input_grad[6:]
        out_weight = out_grad.t() @ (mixed if places is None else mixed[places]) if wanted[1] else None
        mixed_grad = out_grad @ layer.out.weight
        if places is not None:
            total_grad, mixed_grad = _spread(total_grad, places, len(total)), _spread(mixed_grad, places, len(total))
        parts = attend_backward(mixed_grad, qkv, mixed, state, frame)
        del mixed, mixed_grad, qkv, state, kept
        qkv_grad = ops.rotate_back(*(part.contiguous() for part in parts), frame.cos, frame.sin, frame.positions)
        del parts
        joined = (qkv_grad.t() @ normed).split(ctx.sizes) if any(wanted[2:5]) else (None,) * 3
        biases = qkv_grad.sum(0).split(ctx.sizes) if len(wanted) > 5 else ()
        x_grad, norm = ops.norm_backward(qkv_grad @ layer.qkv.weight, total_grad, total, scales, layer.before_attention)
        norm = norm.to(total.dtype) if wanted[0] else None
        return x_grad, x_grad if has_delta else None, None, None, None, None, norm, out_weight, *joined, *biases


def _read(normed: Tensor, layer: Layer | Joined, frame: Frame) -> tuple[Tensor, Tensor, Any]:
    """Rotated queries and keys with values, what was read with them, and what the backward pass of attention needs."""
    qkv = linear(normed, layer.qkv.weight, layer.qkv.bias)
    operations(normed.device).rotate(qkv, frame.cos, frame.sin, frame.positions, frame.heads, frame.kv_heads, frame.size)
    return qkv, *attend(qkv, frame)


def _spread(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """The gradient of some rows as one of all rows."""
    return rows.new_zeros(count, rows.shape[1]).index_copy_(0, places, rows)


class MlpHalf(torch.autograd.Function):  # type: ignore[misc]
    """Norm, gate and up, activation, down."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor, given: Layer | None, eps: float, keep: bool, *weights: Tensor) -> tuple[Tensor, Tensor]:
        ops, layer = operations(x.device), given or Joined.of(weights, 2)
        total, normed, scales = ops.add_norm(x, delta, layer.before_mlp, eps)
        both = linear(normed, layer.gate_up.weight)
        own = () if given is not None else weights
        ctx.save_for_backward(total, scales, *own, *((both,) if keep else ()))
        ctx.rest = given, len(own), eps
        return total, linear(ops.swiglu(both), layer.down.weight)

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor, out_grad: Tensor) -> tuple[Any, ...]:
        given, count, eps = ctx.rest
        total, scales, *kept = ctx.saved_tensors
        ops, layer = operations(total.device), given or Joined.of(kept[:count], 2)
        del kept[:count]
        normed = ops.add_norm(total, None, layer.before_mlp, eps)[1]
        both = kept[0] if kept else linear(normed, layer.gate_up.weight)
        both_grad, active = ops.swiglu_backward(both, out_grad @ layer.down.weight)
        wanted = ctx.needs_input_grad[5:]
        down = out_grad.t() @ active if wanted[1] else None
        del both, kept, active
        joined = (both_grad.t() @ normed).chunk(2) if any(wanted[2:]) else (None, None)
        x_grad, norm = ops.norm_backward(both_grad @ layer.gate_up.weight, total_grad, total, scales, layer.before_mlp)
        return x_grad, x_grad, None, None, None, norm.to(total.dtype) if wanted[0] else None, down, *joined


class LastNorm(torch.autograd.Function):  # type: ignore[misc]
    """The norm after the last layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        total, normed, scales = operations(x.device).add_norm(x, delta, weight, eps)
        ctx.save_for_backward(total, scales, weight)
        out: Tensor = normed
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        total, scales, weight = ctx.saved_tensors
        x_grad, norm = operations(total.device).norm_backward(grad.contiguous(), torch.zeros_like(total), total, scales, weight)
        return x_grad, x_grad, norm.to(weight.dtype), None
