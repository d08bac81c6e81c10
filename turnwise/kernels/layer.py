"""The operations between the matrix products of a layer, as one Triton kernel each. Every kernel is a single pass over its data.

Rounding is where transformers rounds (the residual, the normed value, cosine and sine are in the weights' dtype), the arithmetic between is
float32. A norm whose weight is in float32 rounds only its product with it (Gemma).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait  # type: ignore[import-not-found, unused-ignore]

ROTATE_HEADS = 16  # heads that one program turns
FEW_ROWS = 256  # up to here a norm's programs, one per row, leave most of a GPU idle, and more warps shorten each
NORM_WARPS = 16, 4  # of a norm's program with few rows and with more
LONG_NORM = 2048  # numbers in a row; with more of them, a program has 8 warps at least


@triton.jit
def allow_next(OVERLAP: tl.constexpr):
    """From here on the next kernel's programs may take the room that this one's leave. Its own `wait_for_last` keeps the order."""
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait_for_last(OVERLAP: tl.constexpr):
    """Nothing that an earlier kernel writes may be read, and nothing that it reads may be written, before this."""
    if OVERLAP:
        gdc_wait()


@triton.jit
def _add_norm(
    x, delta, weight, out, size, eps, part_stride, PARTS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    allow_next(OVERLAP)
    row = tl.program_id(0).to(tl.int64) * size
    column = tl.arange(0, BLOCK)
    inside = column < size
    factor = tl.load(weight + column, mask=inside, other=0.0)
    wait_for_last(OVERLAP)
    value = tl.load(x + row + column, mask=inside, other=0.0)
    if PARTS:
        added = tl.load(delta + row + column, mask=inside, other=0.0).to(tl.float32)
        for part in tl.static_range(1, PARTS):
            added += tl.load(delta + part * part_stride + row + column, mask=inside, other=0.0)
        value = (value.to(tl.float32) + added.to(value.dtype).to(tl.float32)).to(value.dtype)
        tl.store(x + row + column, value, mask=inside)
    exact = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(exact * exact, 0) / size + eps)
    normed = exact * scale
    if factor.dtype == value.dtype:
        normed = normed.to(value.dtype).to(tl.float32)
    tl.store(out + row + column, (normed * factor.to(tl.float32)).to(value.dtype), mask=inside)


def launching(overlap: bool) -> dict[str, bool]:
    """How a kernel is launched that may begin before the last one has ended."""
    return {"launch_pdl": True} if overlap else {}


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, overlap: bool = False) -> Tensor:
    """x += delta, in place; returns the RMS norm of x. `delta` may be parts of a sum in float32, [parts, rows, size]: they are added up
    in their order and rounded once. `overlap`: the kernel may begin before the last one has ended."""
    out = torch.empty_like(x)
    rows, size = x.shape
    block = triton.next_power_of_2(size)
    warps = max(NORM_WARPS[rows > FEW_ROWS], 8 if block > LONG_NORM else 1)
    parts = 0 if delta is None else len(delta) if delta.dim() == 3 else 1
    _add_norm[(rows,)](
        x, delta, weight, out, size, eps, rows * size, PARTS=parts, BLOCK=block, OVERLAP=overlap, num_warps=warps,
        **launching(overlap),
    )  # fmt: skip
    return out


@triton.jit
def activation(x, GELU: tl.constexpr):
    """silu(x), or gelu(x) by its formula with tanh: 0.5 (1 + tanh(u)) is a sigmoid of 2u."""
    u = x
    if GELU:
        u = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-u))


@triton.jit
def _gate_mul(both, out, size, GELU: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    allow_next(OVERLAP)
    wait_for_last(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate = tl.load(both + row * 2 * size + column, mask=inside, other=0.0)
    up = tl.load(both + (row * 2 + 1) * size + column, mask=inside, other=0.0)
    active = activation(gate.to(tl.float32), GELU).to(gate.dtype)
    tl.store(out + row * size + column, (active.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


def gate_mul(both: Tensor, kind: str, overlap: bool = False) -> Tensor:
    """activation(first half) · second half."""
    rows, size = len(both), both.shape[1] // 2
    out = both.new_empty(rows, size)
    _gate_mul[(rows, triton.cdiv(size, 1024))](
        both, out, size, GELU=kind != "silu", BLOCK=1024, OVERLAP=overlap, num_warps=4, **launching(overlap)
    )  # fmt: skip
    return out


@triton.jit
def reach(x):
    """The largest absolute value of each row of float32; not a number if one of them is none."""
    return tl.max(tl.abs(x), 1) + tl.sum(x * 0.0, 1)


@triton.jit
def packed(x, most):
    """Rows of float32 as integers of 8 bits (`cache_8bit.pack`); `most` is their reach."""
    inverse = tl.where(most > 0, 127.0 / most, 0.0)
    return tl.floor(x * inverse[:, None] + 0.5).to(tl.int8)


@triton.jit
def _rotate(
    qkv, cache, scales, shift, cos, sin, q_norm, k_norm, table, slots, positions, table_stride, pages, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr,
    EIGHT: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    half = tl.arange(0, SIZE // 2)[None, :]
    inside = (head < HEADS + 2 * KV) & (half >= 0)
    source = qkv + token * (HEADS + 2 * KV) * SIZE + head * SIZE + half
    low = tl.load(source, mask=inside, other=0.0)
    high = tl.load(source + SIZE // 2, mask=inside, other=0.0)
    kind: tl.constexpr = low.dtype
    a, b = low.to(tl.float32), high.to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / SIZE + eps)[:, None]
        is_query = head < HEADS
        low_weight = tl.where(is_query, tl.load(q_norm + half), tl.load(k_norm + half)).to(tl.float32)
        high_weight = tl.where(is_query, tl.load(q_norm + SIZE // 2 + half), tl.load(k_norm + SIZE // 2 + half)).to(tl.float32)
        a, b = a * scale, b * scale
        if q_norm.dtype.element_ty == kind:
            a, b = a.to(kind).to(tl.float32), b.to(kind).to(tl.float32)
        a = (a * low_weight).to(kind).to(tl.float32)
        b = (b * high_weight).to(kind).to(tl.float32)
    position = tl.load(positions + token)
    c = tl.load(cos + position * SIZE + half).to(tl.float32)
    s = tl.load(sin + position * SIZE + SIZE // 2 + half).to(tl.float32)
    is_value = head >= HEADS + KV
    low = tl.where(is_value, low, (a * c - b * s).to(kind))
    high = tl.where(is_value, high, (b * c + a * s).to(kind))
    is_query = inside & (head < HEADS)
    tl.store(source, low, mask=is_query)
    tl.store(source + SIZE // 2, high, mask=is_query)
    page = tl.load(table + tl.load(slots + token).to(tl.int64) * table_stride + position // PAGE).to(tl.int64)
    page = page + tl.where(is_value, pages, 0).to(tl.int64)
    kv_head = tl.where(is_value, head - HEADS - KV, head - HEADS)
    LONG: tl.constexpr = PAGE * (SIZE + 4) if EIGHT else PAGE * SIZE
    block = page * KV + kv_head
    target = cache + block * LONG + position % PAGE * SIZE + half
    stored = inside & (head >= HEADS)
    if EIGHT:
        a, b = low.to(tl.float32), high.to(tl.float32)
        if SHIFT:
            is_key = (head >= HEADS) & (head < HEADS + KV) & (half >= 0)
            relative = shift + (position * KV + kv_head) * SIZE + half
            a -= tl.load(relative, mask=is_key, other=0.0).to(tl.float32)
            b -= tl.load(relative + SIZE // 2, mask=is_key, other=0.0).to(tl.float32)
        most = tl.maximum(reach(a), reach(b), propagate_nan=tl.PropagateNan.ALL)
        at = scales + block * (LONG // 4) + PAGE * SIZE // 4 + position % PAGE
        tl.store(at, (most / 127.0)[:, None], mask=(head >= HEADS) & (head < HEADS + 2 * KV))
        tl.store(target, packed(a, most), mask=stored)
        tl.store(target + SIZE // 2, packed(b, most), mask=stored)
    else:
        tl.store(target, low, mask=stored)
        tl.store(target + SIZE // 2, high, mask=stored)


def rotate(qkv: Tensor, cache: Tensor, layer: Any, tables: Any, slots: Tensor, positions: Tensor, shape: Any) -> None:
    """Norm (Qwen3, Gemma) and rotate queries in place; norm and rotate keys and put them, with the values, into the cache's pages.

    `cache` is one layer's [keys and values, pages, kv heads, tokens, size], or that in 8 bits (`cache_8bit.py`); a token's page is found
    by its slot and position."""
    normed, eight = layer.q_norm is not None, cache.dtype == torch.int8
    grid = (len(qkv), triton.cdiv(shape.heads + 2 * shape.kv_heads, ROTATE_HEADS))
    _rotate[grid](
        qkv, cache, cache.view(torch.float32) if eight else cache, layer.shift, tables.cos[layer.rotation],
        tables.sin[layer.rotation], layer.q_norm, layer.k_norm, tables.pages, slots, positions, tables.pages.stride(0), cache.shape[1],
        shape.eps,
        HEADS=shape.heads, KV=shape.kv_heads, SIZE=shape.head_dim, PAGE=cache.shape[3], NORM=normed, BLOCK=ROTATE_HEADS, EIGHT=eight,
        SHIFT=layer.shift is not None, num_warps=4,
    )  # fmt: skip
