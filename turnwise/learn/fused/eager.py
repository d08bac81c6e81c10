"""The kernels' arithmetic in plain torch, for any device and dtype: the kernels are tested against it, and a CPU runs it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x + delta (x itself if there is none), its RMS norm, and each row's scale."""
    total = x if delta is None else x + delta
    exact = _exact(total)
    scales = torch.rsqrt(exact.square().mean(-1) + eps)
    return total, weight * (exact * scales[:, None]).to(x.dtype), scales


def norm_backward(grad: Tensor, more: Tensor, x: Tensor, scales: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x if its norm has gradient `grad` and x itself has `more`; and the weight's."""
    normed, slope = _exact(x) * scales[:, None], _exact(grad)
    weight_grad = (slope * normed).sum(0)
    slope = slope * weight
    inner = slope - normed * (slope * normed).mean(-1, keepdim=True)
    return (more + scales[:, None] * inner).to(x.dtype), weight_grad


def rotate(qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, heads: int, kv_heads: int, size: int) -> None:
    """Rotate the queries and keys of every token by its position, in place."""
    turned = qkv.view(len(qkv), -1, size)[:, : heads + kv_heads]
    turned.copy_(_turn(turned, cos[positions, None], sin[positions, None]))


def rotate_back(queries: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    """Gradients of rotated queries and keys, and of values, as one gradient of the joined tensor."""
    turned = torch.cat([queries, keys], 1)
    return torch.cat([_turn(turned, cos[positions, None], -sin[positions, None]), values], 1).flatten(1)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`sin` has the sign of a rotation by half the head: minus in the first half."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([high, low], -1) * sin


def swiglu(both: Tensor) -> Tensor:
    """silu(first half) · second half."""
    gate, up = both.chunk(2, -1)
    return silu(gate) * up


def swiglu_backward(both: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of `both`, and the activation again."""
    gate, up = both.chunk(2, -1)
    sigmoid, active = torch.sigmoid(gate), silu(gate)
    return torch.cat([grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * active], -1), active * up


def _exact(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
