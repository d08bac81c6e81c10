"""Attention of prompts over pages, for GPUs whose copy engine brings whole tiles: the same sums as `paged_attention._prompt`, arranged to
keep the matrix units busy.

The number of a page is read one step before the page, so that nobody waits for it. Pages can be taken two at a time, which halves the
rescaling of sums. The scale is part of the exponent's one multiply-and-add. Blocks with the most to read begin first, so that the last
programs to end are short ones. Every layer's cache is one list of rows for the copy engine: a page of one head is a tile of it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-not-found, unused-ignore]

LOG2_E = 1.4426950408889634


class Way(NamedTuple):
    """How a program works: how many pages at once, with how many warps and how many steps under way; `bulk`: by the copy engine;
    `registers`: the most that a thread may have, so that two programs share a multiprocessor. 0: as many as it takes."""

    pages: int = 1
    warps: int = 8
    stages: int = 2
    bulk: bool = True
    registers: int = 0


BEST = Way(1, 4, 3)  # of those that benchmarks/engine_products.py tries on an H200, for prompts of every length


@triton.jit
def _page(cache, page, kv_head, values, KV: tl.constexpr, PAGE: tl.constexpr, SIZE: tl.constexpr, BULK: tl.constexpr):
    """A page's keys and values of one head."""
    if BULK:
        first = (page * KV + kv_head) * PAGE
        k = cache.load([first, 0])
        v = cache.load([first + values, 0])
    else:
        inside, column = tl.arange(0, PAGE), tl.arange(0, SIZE)
        place = cache + ((page.to(tl.int64) * KV + kv_head) * PAGE + inside[:, None]) * SIZE + column[None, :]
        k = tl.load(place)
        v = tl.load(place + values.to(tl.int64) * SIZE)
    return k, v


@triton.jit
def _fold(q, k, v, seen, top, total, sum_, scale, MASK: tl.constexpr, PRECISION: tl.constexpr):
    """Add a page to the sums of a block of queries."""
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if MASK:
        score = tl.where(seen, score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, 1) * scale)
    weight = tl.exp2(score * scale - higher[:, None])
    fade = tl.exp2(top - higher)
    total = total * fade + tl.sum(weight, 1)
    sum_ = tl.dot(weight.to(v.dtype), v, sum_ * fade[:, None], input_precision=PRECISION)
    return higher, total, sum_


@triton.jit
def _fold_two(q, k, v, more_k, more_v, top, total, sum_, scale, PRECISION: tl.constexpr):
    """Add two pages that are seen completely."""
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    more = tl.dot(q, tl.trans(more_k), input_precision=PRECISION)
    higher = tl.maximum(top, tl.maximum(tl.max(score, 1), tl.max(more, 1)) * scale)
    weight = tl.exp2(score * scale - higher[:, None])
    other = tl.exp2(more * scale - higher[:, None])
    fade = tl.exp2(top - higher)
    total = total * fade + (tl.sum(weight, 1) + tl.sum(other, 1))
    sum_ = tl.dot(weight.to(v.dtype), v, sum_ * fade[:, None], input_precision=PRECISION)
    sum_ = tl.dot(other.to(v.dtype), more_v, sum_, input_precision=PRECISION)
    return higher, total, sum_


@triton.jit
def _prompt(
    qkv, cache, table, blocks, out, row_stride, table_stride, values, scale,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, PAGES: tl.constexpr,
    WINDOW: tl.constexpr, BULK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, block = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    kv_head = head // (HEADS // KV)
    slot = tl.load(blocks + block * 4).to(tl.int64)
    token = tl.load(blocks + block * 4 + 1).to(tl.int64)  # the block's first token in the list of all tokens
    first = tl.load(blocks + block * 4 + 2)  # its position
    count = tl.load(blocks + block * 4 + 3)  # tokens of the block
    row, column, inside = tl.arange(0, BLOCK), tl.arange(0, SIZE), tl.arange(0, PAGE)
    real = row < count
    q = tl.load(qkv + (token + row[:, None]) * row_stride + head * SIZE + column[None, :], mask=real[:, None], other=0.0)
    chain = table + slot * table_stride
    end = tl.cdiv(first + count, PAGE)
    begun = 0
    whole = (first + 1) // PAGE  # pages that every token of the block sees completely
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    if WINDOW:  # a token may see nothing of a page that others see: the largest score so far stays a number
        begun = tl.maximum(first + 1 - WINDOW, 0) // PAGE
        whole = begun
        top = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    sum_ = tl.zeros([BLOCK, SIZE], tl.float32)
    last = tl.maximum(end - 1, 0)
    page = tl.load(chain + tl.minimum(begun, last))
    if PAGES == 2:
        other = tl.load(chain + tl.minimum(begun + 1, last))
        for number in range(begun, whole - 1, 2):
            k, v = _page(cache, page, kv_head, values, KV, PAGE, SIZE, BULK)
            more_k, more_v = _page(cache, other, kv_head, values, KV, PAGE, SIZE, BULK)
            page = tl.load(chain + tl.minimum(number + 2, last))
            other = tl.load(chain + tl.minimum(number + 3, last))
            top, total, sum_ = _fold_two(q, k, v, more_k, more_v, top, total, sum_, scale, PRECISION)
        begun += tl.maximum(whole - begun, 0) // 2 * 2
    else:
        for number in range(begun, whole):
            k, v = _page(cache, page, kv_head, values, KV, PAGE, SIZE, BULK)
            page = tl.load(chain + tl.minimum(number + 1, last))
            top, total, sum_ = _fold(q, k, v, real[:, None], top, total, sum_, scale, False, PRECISION)
        begun = tl.maximum(whole, begun)
    for number in range(begun, end):
        k, v = _page(cache, page, kv_head, values, KV, PAGE, SIZE, BULK)
        page = tl.load(chain + tl.minimum(number + 1, last))
        key = number * PAGE + inside
        seen = key[None, :] <= first + row[:, None]
        if WINDOW:
            seen = seen & (key[None, :] > first + row[:, None] - WINDOW)
        top, total, sum_ = _fold(q, k, v, seen, top, total, sum_, scale, True, PRECISION)
    target = out + (token + row[:, None]) * HEADS * SIZE + head * SIZE + column[None, :]
    tl.store(target, (sum_ / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])


def attend_prompts(
    qkv: Tensor, cache: Tensor, layer: Any, table: Tensor, blocks: Tensor, block_size: int, shape: Any, way: Way | None = None
) -> Tensor:
    """As `paged_attention.attend_prompts`. The pages must be in the queries' dtype."""
    way = way or BEST
    size, page = shape.head_dim, cache.shape[3]
    out = qkv.new_empty(len(qkv), shape.heads * size)
    source = TensorDescriptor.from_tensor(cache.view(-1, size), [page, size]) if way.bulk else cache
    _prompt[(shape.heads, len(blocks))](
        qkv, source, table, blocks, out, qkv.stride(0), table.stride(0), cache.stride(0) // size, shape.scale * LOG2_E,
        HEADS=shape.heads, KV=shape.kv_heads, SIZE=size, PAGE=page, BLOCK=block_size, PAGES=way.pages, WINDOW=layer.window,
        BULK=way.bulk, PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32",
        num_warps=way.warps, num_stages=way.stages if size <= 128 else 2, **({"maxnreg": way.registers} if way.registers else {}),
    )  # fmt: skip
    return out
