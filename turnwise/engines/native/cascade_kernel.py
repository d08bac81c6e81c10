"""Attention of a decode step whose lanes share prefixes, in Triton: pages that a group has in common are read once (`cascade.py`).

The query heads that share a key head, of all lanes of a block, are the rows of one matrix product over the common pages. What it finds is
a part of each lane's attention, like those of a split sequence; the lane's own programs read the rest of its pages, and all parts are
merged in the same way. Which lanes belong together is data, so a recorded step serves every plan.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from turnwise.engines.native import paged_attention
from turnwise.engines.native.cascade import ROWS
from turnwise.engines.native.paged_attention import (
    LOG2_E,
    _page_bytes,
    _precision,
    _read,
    _scores,
    _stages,
    _weighed,
    attend_parts,
    attend_singles,
    scales_of,
)

WARPS = 4
STAGES = 3
MOST_SPLITS = 16
USUAL_GROUP = 8  # lanes: with groups of this size, the programs of the common pages fill the GPU


class Shared(NamedTuple):
    """A plan on the device: `pages` [lanes] that are read for a lane by a block, and `blocks` [blocks, 1 + members]: how many pages, and
    the lanes or -1."""

    pages: Tensor
    blocks: Tensor


@triton.jit
def _turned_lanes(qkv, norm, cos, sin, lane, head, turn, column, real, row_stride, eps, SIZE: tl.constexpr, NORM: tl.constexpr):
    """As `paged_attention._turned`, for rows of several tokens: head `head[i]` of lane `lane[i]`, at a position whose angles are at
    `turn[i]`."""
    across = (column + SIZE // 2) % SIZE
    source = qkv + lane[:, None] * row_stride + head[:, None] * SIZE
    here = tl.load(source + column[None, :], mask=real[:, None], other=0.0)
    there = tl.load(source + across[None, :], mask=real[:, None], other=0.0)
    kind: tl.constexpr = here.dtype
    a, b = here.to(tl.float32), there.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(a * a, 1) / SIZE + eps)[:, None]
        a, b = a * scale, b * scale
        if norm.dtype.element_ty == kind:
            a, b = a.to(kind).to(tl.float32), b.to(kind).to(tl.float32)
        a = (a * tl.load(norm + column).to(tl.float32)[None, :]).to(kind).to(tl.float32)
        b = (b * tl.load(norm + across).to(tl.float32)[None, :]).to(kind).to(tl.float32)
    angle = turn[:, None] + column[None, :]
    c = tl.load(cos + angle, mask=real[:, None], other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=real[:, None], other=0.0).to(tl.float32)
    return (a * c + b * s).to(kind)


@triton.jit
def _common(
    qkv, cache, scales, shift, table, slots, positions, cos, sin, q_norm, blocks, parts, sums, row_stride, table_stride, values, scale, eps,
    own, splits,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, MEMBERS: tl.constexpr,
    NORM: tl.constexpr, PRECISION: tl.constexpr, EIGHT: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    kv_head, split = tl.program_id(1), tl.program_id(2)
    plan = blocks + tl.program_id(0) * (1 + MEMBERS)
    GROUP: tl.constexpr = HEADS // KV
    pages = tl.load(plan)
    share = tl.cdiv(pages, splits)
    first = split * share
    last = tl.minimum(first + share, pages)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    inside = tl.arange(0, PAGE)
    lane = tl.load(plan + 1 + row // GROUP, mask=row < MEMBERS * GROUP, other=-1).to(tl.int64)
    real = lane >= 0
    lane = tl.where(real, lane, 0)
    head = kv_head * GROUP + row % GROUP
    turn = tl.load(positions + lane).to(tl.int64) * SIZE
    q = _turned_lanes(qkv, q_norm, cos, sin, lane, head, turn, column, real, row_stride, eps, SIZE, NORM)
    chain = table + tl.load(slots + tl.maximum(tl.load(plan + 1), 0)).to(tl.int64) * table_stride
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sum_ = tl.zeros([ROWS, SIZE], tl.float32)
    for number in range(first, last):
        page = tl.load(chain + number).to(tl.int64)
        k, v, of_k, of_v = _read(cache, scales, page * KV + kv_head, inside, column, values, PAGE, SIZE, PAGE, EIGHT, 0)
        score = scale * _scores(q, k, of_k, shift, number * PAGE, kv_head, inside, column, KV, SIZE, EIGHT, SHIFT, PRECISION)
        top, total, sum_ = _weighed(score, q, v, of_v, top, total, sum_, EIGHT, PRECISION)
    part = (lane * HEADS + head) * (own + splits) + own + split
    tl.store(parts + part[:, None] * SIZE + column[None, :], sum_ / tl.maximum(total, 1e-30)[:, None], mask=real[:, None])
    tl.store(sums + part, tl.where(total > 0, top + tl.log2(tl.maximum(total, 1e-30)), float("-inf")), mask=real)


def common_splits(lanes: int, kv_heads: int) -> int:
    """The number of programs that a block's pages are split among."""
    splits = 1
    while splits * 2 * max(1, lanes // USUAL_GROUP) * kv_heads <= paged_attention.PROGRAMS and splits < MOST_SPLITS:
        splits *= 2
    return splits


def attend_cascade(
    qkv: Tensor, cache: Tensor, layer: Any, tables: Any, slots: Tensor, positions: Tensor, shape: Any, arrivals: Tensor | None, plan: Shared
) -> Tensor:
    """As `attend_singles`; pages that lanes share by `plan` are read once. A layer with a window reads little anyway and has no plan; a GPU
    whose multiprocessors have too little memory for so many queries at once has none either."""
    if layer.window or paged_attention.rows_of(qkv, cache, layer, shape, ROWS)[0] < ROWS:
        return attend_singles(qkv, cache, layer, tables, slots, positions, shape, arrivals)
    lanes, size = len(qkv), shape.head_dim
    own, splits = paged_attention.splits_for(lanes, shape.kv_heads), common_splits(lanes, shape.kv_heads)
    parts = torch.empty(lanes * shape.heads * (own + splits) * size, dtype=torch.float32, device=qkv.device)
    sums = torch.empty(lanes * shape.heads * (own + splits), dtype=torch.float32, device=qkv.device)
    _common[(len(plan.blocks), shape.kv_heads, splits)](
        qkv, cache, scales_of(cache), layer.shift, tables.pages, slots, positions, tables.cos[layer.rotation], tables.sin[layer.rotation],
        layer.q_norm, plan.blocks, parts, sums, qkv.stride(0), tables.pages.stride(0), cache.stride(0), shape.scale * LOG2_E, shape.eps,
        own, splits,
        HEADS=shape.heads, KV=shape.kv_heads, SIZE=size, PAGE=cache.shape[3], ROWS=ROWS, MEMBERS=plan.blocks.shape[1] - 1,
        NORM=layer.q_norm is not None, PRECISION=_precision(qkv), EIGHT=cache.dtype == torch.int8, SHIFT=layer.shift is not None,
        num_warps=WARPS, num_stages=_stages(qkv.device, _page_bytes(cache, layer, size), STAGES),
    )  # fmt: skip
    return attend_parts(qkv, cache, layer, tables, slots, positions, shape, arrivals, plan.pages, (own, splits, parts, sums))
