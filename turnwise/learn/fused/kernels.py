"""The operations between the matrix products of a layer, forward and backward, as one Triton kernel each: a single pass over its data.

Rounding is where transformers rounds (the residual, the normed value, the activation are in the weights' dtype); the arithmetic between
is float32. A norm whose weight is in float32 rounds only its product with it (Gemma). Backward kernels overwrite what is not needed any
more, so a backward pass needs no second copy of the largest activations.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor
from torch.nn.functional import linear

from turnwise.kernels.hopper import tiles as hopper_tiles
from turnwise.kernels.hopper.tiles import gate_tiles
from turnwise.kernels.layer import activation
from turnwise.kernels.product_table import tile_of

HEADS_AT_ONCE = 16
PROGRAMS_A_PROCESSOR = 8  # of kernels whose programs walk over many rows each
STAGES = 1  # rows that such a program reads at the same time


@triton.jit
def _add_norm(x, delta, weight, total, out, scales, size, eps, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    value = tl.load(x + row * size + column, mask=inside, other=0.0)
    if HAS_DELTA:
        more = tl.load(delta + row * size + column, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        tl.store(total + row * size + column, value, mask=inside)
    exact = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(exact * exact, 0) / size + eps)
    tl.store(scales + row, scale)
    factor = tl.load(weight + column, mask=inside, other=0.0)
    normed = exact * scale
    if factor.dtype == value.dtype:
        normed = normed.to(value.dtype).to(tl.float32)
    tl.store(out + row * size + column, (normed * factor.to(tl.float32)).to(value.dtype), mask=inside)


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x + delta (x itself if there is none), its RMS norm, and each row's scale."""
    rows, size = x.shape
    total = x if delta is None else torch.empty_like(x)
    out, scales = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(size)
    warps = 4 if block <= 2048 else 8
    _add_norm[(rows,)](x, delta, weight, total, out, scales, size, eps, HAS_DELTA=delta is not None, BLOCK=block, num_warps=warps)
    return total, out, scales


@triton.jit
def _norm_backward(grad, more, x, scales, weight, out, sums, rows, size, HAS_MORE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    first, step = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    inside = column < size
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    weight_grad = tl.zeros([BLOCK], tl.float32)
    place = first.to(tl.int64) * size + column
    for number in tl.range(first, rows, step, num_stages=STAGES):
        slope = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + place, mask=inside, other=0.0)
        scale = tl.load(scales + number)
        normed = value.to(tl.float32) * scale
        weight_grad += slope * normed
        slope = slope * factor
        mean = tl.sum(slope * normed, 0) / size
        result = scale * (slope - normed * mean)
        if HAS_MORE:
            result = tl.load(more + place, mask=inside, other=0.0).to(tl.float32) + result
        tl.store(out + place, result.to(value.dtype), mask=inside)
        place += step * size
    tl.store(sums + first.to(tl.int64) * size + column, weight_grad, mask=inside)


def norm_backward(
    grad: Tensor, more: Tensor | None, x: Tensor, scales: Tensor, weight: Tensor, known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradient of x if its norm has gradient `grad` and x itself has `more` (none: 0); and the weight's, in float32, added to what is
    `known` of it."""
    rows, size = x.shape
    programs = min(rows, _processors(x.device) * PROGRAMS_A_PROCESSOR)
    sums = torch.empty(programs, size, dtype=torch.float32, device=x.device)
    out, block = torch.empty_like(x), triton.next_power_of_2(size)
    warps = 4 if block <= 2048 else 8
    _norm_backward[(programs,)](
        grad, more, x, scales, weight, out, sums, rows, size, HAS_MORE=more is not None, BLOCK=block, STAGES=STAGES, num_warps=warps
    )
    return out, fold(sums, known)


@triton.jit
def _fold(parts, out, rows, size, ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (column[None, :] < size)
        total += tl.load(parts + row[:, None].to(tl.int64) * size + column[None, :], mask=inside, other=0.0)
    found = tl.sum(total, 0)
    if ADD:
        found += tl.load(out + column, mask=column < size, other=0.0)
    tl.store(out + column, found, mask=column < size)


def fold(parts: Tensor, known: Tensor | None = None) -> Tensor:
    """The sum of rows in float32, added to `known`, in place, if that is given."""
    rows, size = parts.shape
    out = known if known is not None else torch.empty(size, dtype=torch.float32, device=parts.device)
    _fold[(triton.cdiv(size, 16),)](parts, out, rows, size, ADD=known is not None, ROWS=128, COLUMNS=16, num_warps=4)
    return out


@triton.jit
def _widen(x, out, tokens, rows, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    token = tl.load(tokens + row)
    own = tl.load(rows + token) == row
    value = tl.load(x + token * size + column, mask=own & (column < size), other=0.0)
    tl.store(out + row * size + column, value, mask=column < size)


def widen(x: Tensor, tokens: Tensor, rows: Tensor) -> Tensor:
    """Rows of tokens at the places `rows` of a longer tensor; `tokens` says which token is nearest to each place. 0 elsewhere."""
    size = x.shape[1]
    out, block = x.new_empty(len(tokens), size), triton.next_power_of_2(size)
    _widen[(len(tokens),)](x.contiguous(), out, tokens, rows, size, BLOCK=block, num_warps=4 if block <= 2048 else 8)
    return out


@lru_cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@triton.jit
def _norm_heads(
    qkv, out, q_norm, k_norm, eps, HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, WIDE)[None, :]
    inside = (head < HEADS + 2 * KV) & (column < SIZE)
    place = (token * (HEADS + 2 * KV) + head) * SIZE + column
    value = tl.load(qkv + place, mask=inside, other=0.0)
    exact = value.to(tl.float32)
    normed = exact * tl.rsqrt(tl.sum(exact * exact, 1) / SIZE + eps)[:, None]
    query, key = tl.load(q_norm + column, mask=column < SIZE, other=0.0), tl.load(k_norm + column, mask=column < SIZE, other=0.0)
    if query.dtype == value.dtype:
        normed = normed.to(value.dtype).to(tl.float32)
    normed = (normed * tl.where(head < HEADS, query, key).to(tl.float32)).to(value.dtype)
    tl.store(out + place, tl.where(head < HEADS + KV, normed, value), mask=inside)


def norm_heads(qkv: Tensor, q_norm: Tensor, k_norm: Tensor, heads: int, kv_heads: int, size: int, eps: float) -> Tensor:
    """A copy of queries, keys and values in which every head of queries and keys is normed."""
    out, wide = torch.empty_like(qkv), triton.next_power_of_2(size)
    grid = (len(qkv), triton.cdiv(heads + 2 * kv_heads, HEADS_AT_ONCE))
    _norm_heads[grid](qkv, out, q_norm, k_norm, eps, HEADS=heads, KV=kv_heads, SIZE=size, WIDE=wide, BLOCK=HEADS_AT_ONCE, num_warps=4)
    return out


@triton.jit
def _norm_heads_backward(
    grad, qkv, q_norm, k_norm, sums, tokens, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first, step = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, WIDE)[None, :]
    query = tl.load(q_norm + column, mask=column < SIZE, other=0.0).to(tl.float32)
    key = tl.load(k_norm + column, mask=column < SIZE, other=0.0).to(tl.float32)
    query_grad = tl.zeros([WIDE], tl.float32)
    key_grad = tl.zeros([WIDE], tl.float32)
    token = first.to(tl.int64)
    for _ in range(first, tokens, step):
        for start in range(0, HEADS + KV, BLOCK):
            head = start + tl.arange(0, BLOCK)[:, None]
            inside = (head < HEADS + KV) & (column < SIZE)
            place = (token * (HEADS + 2 * KV) + head) * SIZE + column
            value = tl.load(qkv + place, mask=inside, other=0.0)
            slope = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
            exact = value.to(tl.float32)
            scale = tl.rsqrt(tl.sum(exact * exact, 1) / SIZE + eps)[:, None]
            normed = exact * scale
            pull = slope * normed
            query_grad += tl.sum(tl.where(head < HEADS, pull, 0.0), 0)
            key_grad += tl.sum(tl.where(head < HEADS, 0.0, pull), 0)
            slope = slope * tl.where(head < HEADS, query, key)
            mean = (tl.sum(slope * normed, 1) / SIZE)[:, None]
            tl.store(grad + place, (scale * (slope - normed * mean)).to(value.dtype), mask=inside)
        token += step
    own = sums + first.to(tl.int64) * 2 * WIDE + tl.arange(0, WIDE)
    tl.store(own, query_grad)
    tl.store(own + WIDE, key_grad)


def norm_heads_backward(
    grad: Tensor, qkv: Tensor, q_norm: Tensor, k_norm: Tensor, heads: int, kv_heads: int, size: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient before the norms of heads, which overwrites `grad`, and those of their weights, in float32."""
    programs, wide = min(len(qkv), _processors(qkv.device) * PROGRAMS_A_PROCESSOR), triton.next_power_of_2(size)
    sums = torch.empty(programs, 2, wide, dtype=torch.float32, device=qkv.device)
    _norm_heads_backward[(programs,)](
        grad, qkv, q_norm, k_norm, sums, len(qkv), eps, HEADS=heads, KV=kv_heads, SIZE=size, WIDE=wide, BLOCK=HEADS_AT_ONCE, num_warps=4
    )
    query, key = sums.sum(0)[:, :size]
    return grad, query, key


@triton.jit
def _rotate(qkv, cos, sin, positions, TURNED: tl.constexpr, ALL: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    half = tl.arange(0, SIZE // 2)[None, :]
    inside = (head < TURNED) & (half >= 0)
    place = qkv + (token * ALL + head) * SIZE + half
    low = tl.load(place, mask=inside, other=0.0)
    high = tl.load(place + SIZE // 2, mask=inside, other=0.0)
    position = tl.load(positions + token)
    c = tl.load(cos + position * SIZE + half).to(tl.float32)
    s = tl.load(sin + position * SIZE + SIZE // 2 + half).to(tl.float32)
    a, b = low.to(tl.float32), high.to(tl.float32)
    tl.store(place, (a * c - b * s).to(low.dtype), mask=inside)
    tl.store(place + SIZE // 2, (b * c + a * s).to(low.dtype), mask=inside)


@triton.jit
def _rotate_wide(qkv, out, cos, sin, positions, tokens, TURNED: tl.constexpr, ALL: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + row)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    half = tl.arange(0, SIZE // 2)[None, :]
    inside = (head < ALL) & (half >= 0)
    source = qkv + (token * ALL + head) * SIZE + half
    low = tl.load(source, mask=inside, other=0.0)
    high = tl.load(source + SIZE // 2, mask=inside, other=0.0)
    position = tl.load(positions + token)
    c = tl.load(cos + position * SIZE + half).to(tl.float32)
    s = tl.load(sin + position * SIZE + SIZE // 2 + half).to(tl.float32)
    a, b = low.to(tl.float32), high.to(tl.float32)
    place = out + (row * ALL + head) * SIZE + half
    tl.store(place, tl.where(head < TURNED, (a * c - b * s).to(low.dtype), low), mask=inside)
    tl.store(place + SIZE // 2, tl.where(head < TURNED, (b * c + a * s).to(low.dtype), high), mask=inside)


def rotate(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, heads: int, kv_heads: int, size: int, tokens: Tensor | None = None
) -> Tensor:
    """Queries, keys and values with queries and keys rotated by the position of their token: in place, or, if `tokens` are given, a new
    tensor with the rows of these."""
    turned, every = heads + kv_heads, heads + 2 * kv_heads
    if tokens is None:
        grid = (len(qkv), triton.cdiv(turned, HEADS_AT_ONCE))
        _rotate[grid](qkv, cos, sin, positions, TURNED=turned, ALL=every, SIZE=size, BLOCK=HEADS_AT_ONCE, num_warps=4)
        return qkv
    out = qkv.new_empty(len(tokens), qkv.shape[1])
    grid = (len(tokens), triton.cdiv(every, HEADS_AT_ONCE))
    _rotate_wide[grid](qkv, out, cos, sin, positions, tokens, TURNED=turned, ALL=every, SIZE=size, BLOCK=HEADS_AT_ONCE, num_warps=4)
    return out


@triton.jit
def _rotate_back(
    queries, keys, values, out, sums, cos, sin, positions, rows, tokens,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, SUMS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    first, step = tl.program_id(0), tl.num_programs(0)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    half = tl.arange(0, SIZE // 2)[None, :]
    is_query = (head < HEADS) & (half >= 0)
    is_key = (head >= HEADS) & (head < HEADS + KV) & (half >= 0)
    is_value = (head >= HEADS + KV) & (head < HEADS + 2 * KV) & (half >= 0)
    inside = (head < HEADS + 2 * KV) & (half >= 0)
    low_sum = tl.zeros([BLOCK, SIZE // 2], tl.float32)
    high_sum = tl.zeros([BLOCK, SIZE // 2], tl.float32)
    token = first.to(tl.int64)
    for _ in tl.range(first, tokens, step, num_stages=STAGES):
        row = token
        if WIDE:
            row = tl.load(rows + token)
        query = queries + (row * HEADS + head) * SIZE + half
        key = keys + (row * KV + head - HEADS) * SIZE + half
        value = values + (row * KV + head - HEADS - KV) * SIZE + half
        low = tl.load(query, mask=is_query, other=0.0) + tl.load(key, mask=is_key, other=0.0)
        high = tl.load(query + SIZE // 2, mask=is_query, other=0.0) + tl.load(key + SIZE // 2, mask=is_key, other=0.0)
        low += tl.load(value, mask=is_value, other=0.0)
        high += tl.load(value + SIZE // 2, mask=is_value, other=0.0)
        position = tl.load(positions + token)
        c = tl.load(cos + position * SIZE + half).to(tl.float32)
        s = tl.load(sin + position * SIZE + SIZE // 2 + half).to(tl.float32)
        a, b = low.to(tl.float32), high.to(tl.float32)
        place = out + (token * (HEADS + 2 * KV) + head) * SIZE + half
        low = tl.where(is_value, low, (a * c + b * s).to(low.dtype))
        high = tl.where(is_value, high, (b * c - a * s).to(low.dtype))
        tl.store(place, low, mask=inside)
        tl.store(place + SIZE // 2, high, mask=inside)
        if SUMS:
            low_sum += low.to(tl.float32)
            high_sum += high.to(tl.float32)
        token += step
    if SUMS:
        total = sums + (first.to(tl.int64) * (HEADS + 2 * KV) + head) * SIZE + half
        tl.store(total, low_sum, mask=inside)
        tl.store(total + SIZE // 2, high_sum, mask=inside)


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
    """Gradients of rotated queries and keys, and of values, [rows, heads, size] each, as one gradient of the joined tensor, with the rows
    of tokens; `rows` says where those are, if there are others between. If `summed`, also sums of some of its rows each, in float32."""
    queries, keys, values = (part.contiguous() for part in (queries, keys, values))
    tokens, (_, heads, size), kv_heads = len(positions), queries.shape, keys.shape[1]
    every = heads + 2 * kv_heads
    out = queries.new_empty(tokens, every * size)
    programs = min(tokens, _processors(queries.device) * PROGRAMS_A_PROCESSOR) if summed else tokens
    sums = torch.empty(programs, every * size, dtype=torch.float32, device=queries.device) if summed else None
    _rotate_back[(programs, triton.cdiv(every, HEADS_AT_ONCE))](
        queries, keys, values, out, sums, cos, sin, positions, rows, tokens,
        HEADS=heads, KV=kv_heads, SIZE=size, BLOCK=HEADS_AT_ONCE, WIDE=rows is not None, SUMS=summed, STAGES=STAGES if summed else 1,
        num_warps=4,
    )  # fmt: skip
    return out, sums


@triton.jit
def _swiglu(both, out, size, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate = tl.load(both + row * 2 * size + column, mask=inside, other=0.0)
    up = tl.load(both + row * 2 * size + size + column, mask=inside, other=0.0)
    active = activation(gate.to(tl.float32), GELU).to(gate.dtype)
    tl.store(out + row * size + column, (active.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


def swiglu(both: Tensor, kind: str = "silu") -> Tensor:
    """activation(first half) · second half."""
    rows, double = both.shape
    out = both.new_empty(rows, double // 2)
    _swiglu[(rows, triton.cdiv(double // 2, 1024))](both, out, double // 2, GELU=kind != "silu", BLOCK=1024, num_warps=4)
    return out


def gated(x: Tensor, weight: Tensor, kind: str = "silu") -> Tensor:
    """activation(x times the weight's first half) · (x times its second half), where nothing else is needed of them."""
    tile = tile_of(len(x), x.shape[1], len(weight)) if hopper_tiles.available(x.device) and hopper_tiles.fits(x, weight) else None
    return swiglu(linear(x, weight), kind) if tile is None else gate_tiles(x, weight, kind, tile)


@triton.jit
def _swiglu_backward(both, grad, size, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate_place, up_place, place = both + row * 2 * size + column, both + row * 2 * size + size + column, grad + row * size + column
    gate = tl.load(gate_place, mask=inside, other=0.0)
    up = tl.load(up_place, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    exact = gate.to(tl.float32)
    inner, steep = exact, exact  # of the sigmoid, and x times its slope
    if GELU:
        inner = 1.5957691216057308 * (exact + 0.044715 * exact * exact * exact)
        steep = 1.5957691216057308 * (exact + 3.0 * 0.044715 * exact * exact * exact)
    sigmoid = 1.0 / (1.0 + tl.exp(-inner))
    active = (exact * sigmoid).to(gate.dtype).to(tl.float32)
    tl.store(gate_place, (slope * up * sigmoid * (1.0 + steep * (1.0 - sigmoid))).to(gate.dtype), mask=inside)
    tl.store(up_place, (slope * active).to(gate.dtype), mask=inside)
    tl.store(place, (active * up).to(gate.dtype), mask=inside)


def swiglu_backward(both: Tensor, grad: Tensor, kind: str = "silu") -> tuple[Tensor, Tensor]:
    """The gradient of `both`, and what `swiglu` gave. They overwrite `both` and `grad`."""
    rows, double = both.shape
    grid = (rows, triton.cdiv(double // 2, 1024))
    _swiglu_backward[grid](both, grad, double // 2, GELU=kind != "silu", BLOCK=1024, num_warps=4)
    return both, grad


# One pass over a chunk of logits: log-probs, and the gradient of the logits.

LOGITS_AT_ONCE = 4096


@triton.jit
def _pick(logits, target, logprob, normaliser, entropy, factor, words, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK], tl.float32)
    for start in range(0, words, BLOCK):
        column = start + lane
        value = tl.load(logits + row * words + column, mask=column < words, other=-1e30) * factor
        larger = tl.maximum(largest, value)
        shrink, part = tl.exp(largest - larger), tl.exp(value - larger)
        total = total * shrink + part
        weighted = weighted * shrink + tl.where(part > 0, part * value, 0.0)
        largest = larger
    peak = tl.max(largest, 0)
    shrink = tl.exp(largest - peak)
    mass = tl.sum(total * shrink, 0)
    log_sum = peak + tl.log(mass)
    chosen = tl.load(logits + row * words + tl.load(target + row)) * factor
    tl.store(normaliser + row, log_sum)
    tl.store(logprob + row, chosen - log_sum)
    tl.store(entropy + row, log_sum - tl.sum(weighted * shrink, 0) / mass)


def pick(logits: Tensor, target: Tensor, factor: float, logprob: Tensor, normaliser: Tensor, entropy: Tensor) -> None:
    """For every row of float32 logits, times the factor: log-prob of the target, log of the softmax's denominator, entropy."""
    rows, words = logits.shape
    _pick[(rows,)](logits, target, logprob, normaliser, entropy, factor, words, BLOCK=LOGITS_AT_ONCE, num_warps=8)


@triton.jit
def _logit_gradients(logits, target, normaliser, entropy, pull, push, out, factor, words, HAS_PUSH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < words
    log_p = tl.load(logits + row * words + column, mask=inside, other=0.0) * factor - tl.load(normaliser + row)
    strength = tl.load(pull + row)
    inner = -strength
    if HAS_PUSH:  # d entropy / d logit = −p (log p + entropy)
        inner = inner - tl.load(push + row) * (log_p + tl.load(entropy + row))
    slope = tl.exp(log_p) * inner + tl.where(column == tl.load(target + row), strength, 0.0)
    tl.store(out + row * words + column, (slope * factor).to(out.dtype.element_ty), mask=inside)


def logit_gradients(
    logits: Tensor,
    target: Tensor,
    normaliser: Tensor,
    entropy: Tensor,
    pull: Tensor,
    push: Tensor | None,
    factor: float,
    dtype: Any,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient of raw logits if the log-prob of the target has gradient `pull` and the entropy has `push`. `out`: where it is put."""
    rows, words = logits.shape
    if out is None:
        out = torch.empty(logits.shape, dtype=dtype, device=logits.device)
    grid = (rows, triton.cdiv(words, LOGITS_AT_ONCE))
    _logit_gradients[grid](
        logits, target, normaliser, entropy, pull, push, out, factor, words, HAS_PUSH=push is not None, BLOCK=LOGITS_AT_ONCE, num_warps=8
    )
    return out
