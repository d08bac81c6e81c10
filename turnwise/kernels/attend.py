"""Attention over pages on a GPU, in Triton: one kernel for steps of single tokens, one for prompts.

A step of single tokens is bound by reading keys and values once. The query heads that share a key head are the rows of one small matrix
product, so each page is read once for all of them, and a long sequence is split among several programs whose parts are then merged. The
rotation and the write of the new key and value are part of the same kernel: a launch saved in every layer.

A prompt is bound by arithmetic. It attends to what was in the pages before (an earlier turn, another row's common prefix) and to itself,
both read from the pages, where the step has just written its own keys and values.

A layer with a sliding window starts with the page that its window starts in. Layers without one are compiled without any of it.

A cache in 8 bits (`cache_8bit.py`) has a scale for every token and head: that of a key multiplies its score, that of a value its weight.
Keys may be stored relative to a vector that depends on the position alone (`Layer.shift`), whose score is added again.

What follows a sequence's end in a page gets weight 0, so it must not be NaN: the cache starts with zeros.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from turnwise.kernels.gpu import rows_and_stages, shared_memory
from turnwise.kernels.layer import packed, reach

PROGRAMS = 264  # enough to keep every SM of a large GPU reading; more splits only add to the merging
WARPS = 2
STAGES = 5  # pages under way, if an SM has the memory for them
LOT = 16  # tokens of a page that are read or left out together, beyond a row's end; 0: pages are read as a whole
RESERVED = 16 << 10  # bytes of an SM's shared memory for queries and scores
MOST_SPLITS = 32
LOG2_E = 1.4426950408889634


@triton.jit
def _added(source, real, stride, PARTS: tl.constexpr, KIND: tl.constexpr):
    """Numbers of a product, as they are or from the parts of their sums, which are rounded once."""
    value = tl.load(source, mask=real, other=0.0)
    if PARTS > 1:
        for part in tl.static_range(1, PARTS):
            value += tl.load(source + part * stride, mask=real, other=0.0)
        value = value.to(KIND)
    return value


@triton.jit
def _turned(
    source, norm, cos, sin, row, column, real, eps, stride,
    SIZE: tl.constexpr, NORM: tl.constexpr, PARTS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Heads of one token, normed (Qwen3, Gemma) and rotated: rows of `source`, each of SIZE numbers. Rounded where transformers rounds."""
    across = (column + SIZE // 2) % SIZE
    here = _added(source + row[:, None] * SIZE + column[None, :], real[:, None], stride, PARTS, KIND)
    there = _added(source + row[:, None] * SIZE + across[None, :], real[:, None], stride, PARTS, KIND)
    kind: tl.constexpr = here.dtype
    a, b = here.to(tl.float32), there.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(a * a, 1) / SIZE + eps)[:, None]
        a, b = a * scale, b * scale
        if norm.dtype.element_ty == kind:
            a, b = a.to(kind).to(tl.float32), b.to(kind).to(tl.float32)
        a = (a * tl.load(norm + column).to(tl.float32)[None, :]).to(kind).to(tl.float32)
        b = (b * tl.load(norm + across).to(tl.float32)[None, :]).to(kind).to(tl.float32)
    c, s = tl.load(cos + column).to(tl.float32), tl.load(sin + column).to(tl.float32)  # sin has the rotation's signs
    return (a * c[None, :] + b * s[None, :]).to(kind)


@triton.jit
def _read(
    cache, scales, block, inside, column, values, rest,
    SIZE: tl.constexpr, PAGE: tl.constexpr, EIGHT: tl.constexpr, LOT: tl.constexpr,
):  # fmt: skip
    """A block (a page of one key head): keys and values as they are stored, and the scales of both. With LOT: only the lots that the first
    `rest` tokens are in, and zeros for the others. A lot of as many rows as the threads read at once costs no comparison per thread."""
    LONG: tl.constexpr = PAGE * (SIZE + 4) if EIGHT else PAGE * SIZE
    place = cache + block * LONG + inside[:, None] * SIZE + column[None, :]
    if LOT:
        wanted = (inside // LOT * LOT < rest)[:, None]
        k = tl.load(place, mask=wanted, other=0)
        v = tl.load(place + values, mask=wanted, other=0)
    else:
        k = tl.load(place)
        v = tl.load(place + values)
    if EIGHT:
        at = scales + block * (LONG // 4) + PAGE * SIZE // 4 + inside
        of_k = tl.load(at)
        of_v = tl.load(at + values // 4)
    else:
        of_k = inside
        of_v = inside
    return k, v, of_k, of_v


@triton.jit
def _scores(
    q, k, of_k, shift, first, kv_head, inside, column,
    KV: tl.constexpr, SIZE: tl.constexpr, EIGHT: tl.constexpr, SHIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Products of queries with the keys of a page whose first token is at position `first`."""
    score = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION)
    if EIGHT:
        score = score * of_k[None, :]
    if SHIFT:
        added = tl.load(shift + ((first + inside)[:, None] * KV + kv_head) * SIZE + column[None, :])
        score += tl.dot(q, tl.trans(added), input_precision=PRECISION)
    return score


@triton.jit
def _write(cache, scales, block, place, key, value, column, values, SIZE: tl.constexpr, PAGE: tl.constexpr, EIGHT: tl.constexpr):
    """One token's key and value, each [1, SIZE], into a block."""
    LONG: tl.constexpr = PAGE * (SIZE + 4) if EIGHT else PAGE * SIZE
    target = cache + block * LONG + place * SIZE + column[None, :]
    if EIGHT:
        at = scales + block * (LONG // 4) + PAGE * SIZE // 4 + place + tl.arange(0, 1)
        of_key, of_value = reach(key.to(tl.float32)), reach(value.to(tl.float32))
        tl.store(at, of_key / 127.0)
        tl.store(at + values // 4, of_value / 127.0)
        tl.store(target, packed(key.to(tl.float32), of_key))
        tl.store(target + values, packed(value.to(tl.float32), of_value))
    else:
        tl.store(target, key)
        tl.store(target + values, value)


@triton.jit
def _keep(
    own, cache, scales, shift, page, cos, sin, k_norm, kv_head, length, turn, column, values, eps, part_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, NORM: tl.constexpr, EIGHT: tl.constexpr,
    SHIFT: tl.constexpr, PARTS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The key and value of a seq's newest token, the last of `length`, into its page."""
    one = tl.arange(0, 1)
    at = own + (HEADS + kv_head) * SIZE
    key = _turned(at, k_norm, cos + turn, sin + turn, one, column, one < 1, eps, part_stride, SIZE, NORM, PARTS, KIND)
    value = _added(at + KV * SIZE + column, column < SIZE, part_stride, PARTS, KIND)[None, :]
    if SHIFT:
        key = key.to(tl.float32) - tl.load(shift + turn * KV + kv_head * SIZE + column).to(tl.float32)[None, :]
    _write(cache, scales, page * KV + kv_head, (length - 1) % PAGE, key, value, column, values, SIZE, PAGE, EIGHT)


@triton.jit
def _single(
    qkv, cache, scales, shift, table, slots, positions, cos, sin, q_norm, k_norm, out, parts, sums,
    row_stride, table_stride, values, scale, eps, splits, part_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr,
    NORM: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr, EIGHT: tl.constexpr, SHIFT: tl.constexpr,
    PARTS: tl.constexpr, LOT: tl.constexpr,
):  # fmt: skip
    seq, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV
    KIND: tl.constexpr = out.dtype.element_ty
    length = tl.load(positions + seq) + 1
    pages = tl.cdiv(length, PAGE)
    if WINDOW:
        begun = tl.maximum(length - WINDOW, 0) // PAGE  # the first page that is seen
        share = tl.cdiv(pages - begun, splits)
        first = begun + split * share
    else:
        share = tl.cdiv(pages, splits)
        first = split * share
    last = tl.minimum(first + share, pages)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    inside = tl.arange(0, PAGE)
    real = row < GROUP
    own = qkv + seq * row_stride
    turn = (length - 1).to(tl.int64) * SIZE
    chain = table + tl.load(slots + seq).to(tl.int64) * table_stride
    if (last == pages) & (first < pages):  # this program reads the page of the new token: it puts its key and value there
        page = tl.load(chain + pages - 1).to(tl.int64)
        _keep(
            own, cache, scales, shift, page, cos, sin, k_norm, kv_head, length, turn, column, values, eps, part_stride,
            HEADS, KV, SIZE, PAGE, NORM, EIGHT, SHIFT, PARTS, KIND,
        )  # fmt: skip
    tl.debug_barrier()  # what one thread has written the others read
    q = _turned(own + kv_head * GROUP * SIZE, q_norm, cos + turn, sin + turn, row, column, real, eps, part_stride, SIZE, NORM, PARTS, KIND)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sum_ = tl.zeros([ROWS, SIZE], tl.float32)
    for number in range(first, last):
        page = tl.load(chain + number).to(tl.int64)
        rest = length - number * PAGE  # tokens from here on
        k, v, of_k, of_v = _read(cache, scales, page * KV + kv_head, inside, column, values, rest, SIZE, PAGE, EIGHT, LOT)
        known = inside < rest
        if WINDOW:
            known = known & (number * PAGE + inside >= length - WINDOW)
        score = scale * _scores(q, k, of_k, shift, number * PAGE, kv_head, inside, column, KV, SIZE, EIGHT, SHIFT, PRECISION)
        score = tl.where(known[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weight, 1)
        if EIGHT:
            weight = weight * of_v[None, :]
        sum_ = sum_ * fade[:, None] + tl.dot(weight.to(q.dtype), v.to(q.dtype), input_precision=PRECISION)
        top = higher
    head = kv_head * GROUP + row
    if not SPLIT:
        target = out + seq * HEADS * SIZE + head[:, None] * SIZE + column[None, :]
        tl.store(target, (sum_ / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])
    else:
        part = (seq * HEADS + head) * splits + split
        tl.store(parts + part[:, None] * SIZE + column[None, :], sum_ / tl.maximum(total, 1e-30)[:, None], mask=real[:, None])
        tl.store(sums + part, tl.where(total > 0, top + tl.log2(tl.maximum(total, 1e-30)), float("-inf")), mask=real)


@triton.jit
def _merge(parts, sums, out, count, SIZE: tl.constexpr, SPLITS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    column = tl.arange(0, SIZE)
    size = tl.load(sums + row * count + split, mask=split < count, other=float("-inf"))
    weight = tl.exp2(size - tl.max(size, 0))
    part = tl.load(parts + (row * count + split[:, None]) * SIZE + column[None, :], mask=(size > float("-inf"))[:, None], other=0.0)
    merged = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + row * SIZE + column, merged.to(out.dtype.element_ty))


def splits_for(seqs: int, kv_heads: int) -> int:
    """The number of programs that a sequence is split among: a power of two that fills the GPU."""
    splits = 1
    while splits * 2 * seqs * kv_heads <= PROGRAMS and splits < MOST_SPLITS:
        splits *= 2
    return splits


def attend_singles(
    qkv: Tensor, cache: Tensor, layer: Any, tables: Any, slots: Tensor, positions: Tensor, shape: Any
) -> Tensor:  # fmt: skip
    """One token per sequence at `positions`; `qkv` is [sequences, heads], or parts of it in float32, [parts, sequences, heads]. Queries and
    keys are normed and rotated in the same pass, and the new keys and values go into the cache: `qkv` is as the matrix product left it.
    Returns [sequences, heads · size]."""
    seqs, size, splits = qkv.shape[-2], shape.head_dim, splits_for(qkv.shape[-2], shape.kv_heads)
    parts = torch.empty(seqs * shape.heads * splits * size if splits > 1 else 1, dtype=torch.float32, device=qkv.device)
    sums = torch.empty(seqs * shape.heads * splits, dtype=torch.float32, device=qkv.device)
    out = torch.empty(seqs, shape.heads * size, dtype=tables.cos[0].dtype, device=qkv.device)
    _single[(seqs, shape.kv_heads, splits)](
        qkv, cache, scales_of(cache), layer.shift, tables.pages, slots, positions, tables.cos[layer.rotation], tables.sin[layer.rotation],
        layer.q_norm, layer.k_norm, out, parts, sums, qkv.stride(-2), tables.pages.stride(0), cache.stride(0), shape.scale * LOG2_E,
        shape.eps, splits, qkv.stride(0),
        HEADS=shape.heads, KV=shape.kv_heads, SIZE=size, PAGE=cache.shape[3], SPLIT=splits > 1, NORM=layer.q_norm is not None,
        WINDOW=layer.window, ROWS=max(16, triton.next_power_of_2(shape.group)), PRECISION=_precision(out),
        EIGHT=cache.dtype == torch.int8, SHIFT=layer.shift is not None, PARTS=len(qkv) if qkv.dim() == 3 else 1, LOT=LOT,
        num_warps=2 * WARPS if cache.dtype == torch.int8 else WARPS,
        num_stages=_stages(qkv.device, _page_bytes(cache, layer, size), STAGES),
    )  # fmt: skip
    if splits > 1:
        _merge[(seqs * shape.heads,)](parts, sums, out, splits, SIZE=size, SPLITS=splits, num_warps=2)
    return out


@triton.jit
def _weighed(score, q, v, of_v, top, total, sum_, EIGHT: tl.constexpr, PRECISION: tl.constexpr):
    """The largest score, the sum of weights and the weighted sum of values so far, with those of another page."""
    higher = tl.maximum(top, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    fade = tl.exp2(top - higher)
    total = total * fade + tl.sum(weight, 1)
    sum_ = sum_ * fade[:, None]
    if EIGHT:
        weight = weight * of_v[None, :]
    sum_ = tl.dot(weight.to(q.dtype), v.to(q.dtype), sum_, input_precision=PRECISION)
    return higher, total, sum_


@triton.jit
def _prompt(
    qkv, cache, scales, shift, table, blocks, out, row_stride, table_stride, values, scale,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
    PRECISION: tl.constexpr, EIGHT: tl.constexpr, SHIFT: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    block, piece, head = tl.program_id(0) // PIECES, tl.program_id(0) % PIECES, tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV
    kv_head = head // GROUP
    slot = tl.load(blocks + block * 4).to(tl.int64)
    token = tl.load(blocks + block * 4 + 1).to(tl.int64) + piece * BLOCK  # the first token in the list of all tokens
    first = tl.load(blocks + block * 4 + 2) + piece * BLOCK  # its position
    count = tl.load(blocks + block * 4 + 3) - piece * BLOCK  # tokens of the block, or what is left of them
    count = tl.minimum(tl.maximum(count, 0), BLOCK)
    row = tl.arange(0, BLOCK)
    column = tl.arange(0, SIZE)
    inside = tl.arange(0, PAGE)
    real = row < count
    q = tl.load(qkv + (token + row[:, None]) * row_stride + head * SIZE + column[None, :], mask=real[:, None], other=0.0)
    chain = table + slot * table_stride
    end = tl.where(count > 0, tl.cdiv(first + count, PAGE), 0)  # a piece without tokens reads nothing
    if WINDOW:  # a token may see nothing of a page that others see: the largest score so far stays a number
        top = tl.full([BLOCK], -1e30, tl.float32)
        begun = tl.maximum(first + 1 - WINDOW, 0) // PAGE
        whole = begun
    else:
        top = tl.full([BLOCK], float("-inf"), tl.float32)
        begun = 0
        whole = tl.minimum((first + 1) // PAGE, end)  # pages that every token of the block sees completely
    total = tl.zeros([BLOCK], tl.float32)
    sum_ = tl.zeros([BLOCK, SIZE], tl.float32)
    for number in range(begun, whole):
        page = tl.load(chain + number).to(tl.int64)
        k, v, of_k, of_v = _read(cache, scales, page * KV + kv_head, inside, column, values, PAGE, SIZE, PAGE, EIGHT, 0)
        score = scale * _scores(q, k, of_k, shift, number * PAGE, kv_head, inside, column, KV, SIZE, EIGHT, SHIFT, PRECISION)
        top, total, sum_ = _weighed(score, q, v, of_v, top, total, sum_, EIGHT, PRECISION)
    for number in range(whole, end):
        page = tl.load(chain + number).to(tl.int64)
        key = number * PAGE + inside
        k, v, of_k, of_v = _read(cache, scales, page * KV + kv_head, inside, column, values, PAGE, SIZE, PAGE, EIGHT, 0)
        score = scale * _scores(q, k, of_k, shift, number * PAGE, kv_head, inside, column, KV, SIZE, EIGHT, SHIFT, PRECISION)
        seen = key[None, :] <= first + row[:, None]
        if WINDOW:
            seen = seen & (key[None, :] > first + row[:, None] - WINDOW)
        score = tl.where(seen, score, float("-inf"))
        top, total, sum_ = _weighed(score, q, v, of_v, top, total, sum_, EIGHT, PRECISION)
    target = out + (token + row[:, None]) * HEADS * SIZE + head * SIZE + column[None, :]
    tl.store(target, (sum_ / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])


def attend_prompts(qkv: Tensor, cache: Tensor, layer: Any, table: Tensor, blocks: Tensor, block_size: int, shape: Any) -> Tensor:
    """Tokens of prompts. `blocks` [blocks, 4] int32: slot, first token in `qkv`, its position, how many tokens (up to `block_size`)."""
    out = qkv.new_empty(len(qkv), shape.heads * shape.head_dim)
    rows, stages = rows_of(qkv, cache, layer, shape, block_size)
    _prompt[(len(blocks) * (block_size // rows), shape.heads)](
        qkv, cache, scales_of(cache), layer.shift, table, blocks, out, qkv.stride(0), table.stride(0), cache.stride(0),
        shape.scale * LOG2_E,
        HEADS=shape.heads, KV=shape.kv_heads, SIZE=shape.head_dim, PAGE=cache.shape[3], BLOCK=rows, WINDOW=layer.window,
        PRECISION=_precision(qkv), EIGHT=cache.dtype == torch.int8, SHIFT=layer.shift is not None, PIECES=block_size // rows,
        num_warps=8 if rows >= 128 else 4, num_stages=stages,
    )  # fmt: skip
    return out


def rows_of(q: Tensor, cache: Tensor, layer: Any, shape: Any, most: int) -> tuple[int, int]:
    """How many queries a program takes at once on this GPU, up to `most`, and the stages of its pages."""
    size, page_bytes, packed = shape.head_dim, _page_bytes(cache, layer, shape.head_dim), cache.dtype == torch.int8
    return rows_and_stages(shared_memory(q.device), most, size, cache.shape[3], page_bytes, q.element_size(), packed)


def scales_of(cache: Tensor) -> Tensor:
    """The memory of a cache in 8 bits as the type of its scales; any other cache as it is."""
    return cache.view(torch.float32) if cache.dtype == torch.int8 else cache


def _page_bytes(cache: Tensor, layer: Any, size: int) -> int:
    """What a program reads of a page: keys and values, and what keys are relative to."""
    read = 2 * cache.element_size() + (0 if layer.shift is None else layer.shift.element_size())
    return int(read * cache.shape[3] * size)


def _stages(device: torch.device, page_bytes: int, most: int) -> int:
    """The pages of `page_bytes`, keys and values, that an SM has under way at once."""
    return max(2, min(most, (shared_memory(device) - RESERVED) // page_bytes))


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"
