"""The kernels' arithmetic in plain torch, for any device and dtype: the kernels are tested against it, and a CPU runs it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, silu


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x + delta (x itself if there is none), its RMS norm, and each row's scale."""
    total = x if delta is None else x + delta
    exact = _exact(total)
    if total.dtype == weight.dtype == exact.dtype:  # as below, with fewer passes
        scales = torch.linalg.vector_norm(total, dim=-1).square_().div_(total.shape[-1]).add_(eps).rsqrt_()
        return total, (total * scales[:, None]).mul_(weight), scales
    scales = torch.rsqrt(exact.square().mean(-1) + eps)
    return total, _times(exact * scales[:, None], weight, x.dtype), scales


def norm_backward(
    grad: Tensor, more: Tensor | None, x: Tensor, scales: Tensor, weight: Tensor, known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradient of x if its norm has gradient `grad` and x itself has `more` (none: 0); and the weight's, added to what is `known` of
    it."""
    if x.dtype == weight.dtype == scales.dtype:  # as below, with fewer passes
        both = grad * x
        weight_grad = both.t() @ scales
        pull = (both @ weight).mul_(scales.pow(3)).div_(-x.shape[-1])
        inner = (grad * weight).mul_(scales[:, None]).addcmul_(x, pull[:, None])
        return inner if more is None else inner.add_(more), weight_grad if known is None else known.add_(weight_grad)
    normed, slope = _exact(x) * scales[:, None], _exact(grad)
    weight_grad = (slope * normed).sum(0)
    slope = slope * weight
    inner = scales[:, None] * (slope - normed * (slope * normed).mean(-1, keepdim=True))
    return (inner if more is None else more + inner).to(x.dtype), weight_grad if known is None else known.add_(weight_grad)


def fold(parts: Tensor, known: Tensor | None = None) -> Tensor:
    """The sum of rows, added to `known`, in place, if that is given."""
    return parts.sum(0) if known is None else known.add_(parts.sum(0))


def widen(x: Tensor, tokens: Tensor, rows: Tensor) -> Tensor:
    """Rows of tokens at the places `rows` of a longer tensor, as many as there are `tokens`; 0 elsewhere."""
    return x.new_zeros(len(tokens), x.shape[1]).index_copy_(0, rows, x)


def norm_heads(qkv: Tensor, q_norm: Tensor, k_norm: Tensor, heads: int, kv_heads: int, size: int, eps: float) -> Tensor:
    """A copy of queries, keys and values in which every head of queries and keys is normed."""
    out = qkv.clone().view(len(qkv), -1, size)
    for part, weight in ((out[:, :heads], q_norm), (out[:, heads : heads + kv_heads], k_norm)):
        exact = _exact(part)
        part.copy_(_times(exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps), weight, qkv.dtype))
    return out.flatten(1)


def norm_heads_backward(
    grad: Tensor, qkv: Tensor, q_norm: Tensor, k_norm: Tensor, heads: int, kv_heads: int, size: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient before the norms of heads, and those of their weights. It may overwrite `grad`."""
    slopes, values = grad.view(len(grad), -1, size), qkv.view(len(grad), -1, size)
    sums = []
    for part, weight in ((slice(0, heads), q_norm), (slice(heads, heads + kv_heads), k_norm)):
        flat = values[:, part].reshape(-1, size)
        scales = torch.rsqrt(_exact(flat).square().mean(-1) + eps)
        found, weight_grad = norm_backward(slopes[:, part].reshape(-1, size), None, flat, scales, weight)
        slopes[:, part] = found.view(len(grad), -1, size)
        sums.append(weight_grad)
    return grad, sums[0], sums[1]


def rotate(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, heads: int, kv_heads: int, size: int, tokens: Tensor | None = None
) -> Tensor:
    """Queries, keys and values with queries and keys rotated by the position of their token: in place, or, if `tokens` are given, a new
    tensor with the rows of these."""
    if tokens is not None:
        qkv, positions = qkv[tokens], positions[tokens]
    _turn(qkv.view(len(qkv), -1, size)[:, : heads + kv_heads], cos[positions, None], sin[positions, None])
    return qkv


def rotate_back(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rows: Tensor | None = None,
    summed: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of rotated queries and keys, and of values, as one gradient of the joined tensor, with the rows of tokens; `rows` says
    where those are, if there are others between. If `summed`, also that gradient as what is to be summed."""
    if rows is not None:
        queries, keys, values = queries[rows], keys[rows], values[rows]
    whole = _whole(queries, keys, values)
    found = torch.cat([queries, keys, values], 1).flatten(1) if whole is None else whole
    _turn(found.view(len(found), -1, queries.shape[2])[:, : queries.shape[1] + keys.shape[1]], cos[positions, None], -sin[positions, None])
    return found, found if summed else None


def _whole(*parts: Tensor) -> Tensor | None:
    """The matrix whose columns these parts are, one after another, if they are all of them; it may be overwritten. Otherwise None."""
    base, column = parts[0]._base, 0
    if base is None or base.dim() != 2 or not base.is_contiguous():
        return None
    for part in parts:
        rows = len(part) == len(base) and part.stride() == (base.shape[1], part.shape[2], 1)
        if part._base is not base or not rows or part.storage_offset() != base.storage_offset() + column:
            return None
        column += part.shape[1] * part.shape[2]
    return base if column == base.shape[1] else None


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """In place. `sin` has the sign of a rotation by half the head: minus in the first half."""
    across = x.roll(x.shape[-1] // 2, -1)
    x.mul_(cos).addcmul_(across, sin)


def swiglu(both: Tensor, kind: str = "silu") -> Tensor:
    """activation(first half) · second half."""
    gate, up = both.chunk(2, -1)
    return (silu(gate) if kind == "silu" else gelu(gate, approximate="tanh")).mul_(up)


def gated(x: Tensor, weight: Tensor, kind: str = "silu") -> Tensor:
    """activation(x times the weight's first half) · (x times its second half), where nothing else is needed of them."""
    return swiglu(linear(x, weight), kind)


def swiglu_backward(both: Tensor, grad: Tensor, kind: str = "silu") -> tuple[Tensor, Tensor]:
    """The gradient of `both`, and what `swiglu` gave. It may overwrite its arguments."""
    gate, up = both.chunk(2, -1)
    found = torch.empty_like(both)
    gate_grad, up_grad = found.chunk(2, -1)
    active = silu(gate) if kind == "silu" else gelu(gate, approximate="tanh")
    torch.mul(grad, active, out=up_grad)
    torch.mul(grad, up, out=gate_grad)
    if kind == "silu":
        torch.ops.aten.silu_backward(gate_grad, gate, grad_input=gate_grad)
    else:
        torch.ops.aten.gelu_backward(gate_grad, gate, approximate="tanh", grad_input=gate_grad)
    return found, active.mul_(up)


def _times(normed: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A normed value times the weight, rounded before the product; a weight of more precision (Gemma) is multiplied first."""
    return weight * normed.to(dtype) if weight.dtype == dtype else (normed * weight).to(dtype)


def _exact(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
