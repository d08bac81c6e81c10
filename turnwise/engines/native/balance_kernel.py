"""Attention of a decode step whose programs all read about the same number of pages, in Triton, whatever the lengths of its sequences.

The pages that the lanes of a step see are put in one line, lane after lane, and the line is cut into stretches of equal length: one for
each program of a key head. A stretch may hold the end of one lane, all of some others and the beginning of the next. What it holds of a
lane is a part of the lane's attention; a lane that lies in several stretches is merged by the program that is done last.

`_cut` finds the stretches, once per step for every size of window: one plan serves all layers. The number of stretches is fixed, so that a
step can be recorded. Where a step has too few pages for all of them, the programs of the last ones have nothing to do.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from turnwise.engines.native import paged_attention
from turnwise.engines.native.block_memory import multiprocessors
from turnwise.engines.native.layer_products import since_hopper
from turnwise.engines.native.paged_attention import (
    LOG2_E,
    _keep,
    _page_bytes,
    _precision,
    _read,
    _scores,
    _stages,
    _turned,
    _weighed,
    scales_of,
)

RESIDENT = 2  # programs for each multiprocessor: all of them at work at the same time
WARPS = 2
STAGES = 5
NEXT = False  # as in `paged_attention`
LEAST = 4  # pages of a stretch
BEGINNING = 1  # pages that could be read in the time in which a program takes up another lane
MERGING = 1  # pages that could be read in the time in which parts are merged
AHEAD = 4  # parts that are read at once to be merged
BRING = 0  # pages of a lane that are asked for before anything else is done for it (GPUs since Hopper)
STRETCH: tl.constexpr = tl.constexpr(16)  # numbers of a stretch in a plan
LANE: tl.constexpr = tl.constexpr(8)  # numbers of a lane


class Plan(NamedTuple):
    """What each program reads. `stretches` [count, STRETCH]: its first lane, the lane after its last, where it begins and ends in the line;
    then the numbers of its first lane. `lanes` [lanes, LANE]: slot, tokens, where in the line page 0 is (or would be, if a window has left
    it behind), first stretch, number of stretches."""

    stretches: Tensor
    lanes: Tensor
    window: int


@triton.jit
def _seen(tokens, PAGE: tl.constexpr, WINDOW: tl.constexpr):
    """The first page that a lane sees, and how many."""
    begun = tl.maximum(tokens - WINDOW, 0) // PAGE if WINDOW else tokens * 0
    return begun, tl.cdiv(tokens, PAGE) - begun


@triton.jit
def _lane_of(slots, positions, lane, real, starts, total, count, whole, beginning, PAGE: tl.constexpr, WINDOW: tl.constexpr):
    """The numbers of lanes in a plan; `whole`: how long each is in the line, if all are equally long there."""
    tokens = tl.load(positions + lane, mask=real, other=0) + 1
    begun, seen = _seen(tokens, PAGE, WINDOW)
    first = starts + tl.where(whole > 0, whole - seen, beginning)
    stretch = ((first + 1).to(tl.int64) * count - 1) // total
    stretches = ((first + seen).to(tl.int64) * count - 1) // total + 1 - stretch
    return tl.load(slots + lane, mask=real, other=0), tokens, first - begun, stretch.to(tl.int32), stretches.to(tl.int32)


@triton.jit
def _note(at, mask, slot, tokens, origin, stretch, stretches):
    tl.store(at, slot, mask=mask)
    tl.store(at + 1, tokens, mask=mask)
    tl.store(at + 2, origin, mask=mask)
    tl.store(at + 3, stretch, mask=mask)
    tl.store(at + 4, stretches, mask=mask)


@triton.jit(do_not_specialize=["lanes", "most", "least", "beginning", "merging"])
def _cut(
    slots, positions, stretches, lane_numbers, lanes, most, least, beginning, merging,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The numbers of BLOCK stretches. To take up a lane counts as `beginning` pages before its first one, and to merge its parts as
    `merging`: if lanes would be longer by no more than that, each of them is a stretch, as if all were as long as the longest."""
    lane = tl.arange(0, LANES)
    real = lane < lanes
    _, seen = _seen(tl.load(positions + lane, mask=real, other=0) + 1, PAGE, WINDOW)
    long = tl.where(real, seen + beginning, 0)
    total, longest = tl.sum(long, 0), tl.max(long, 0)
    count = tl.maximum(tl.minimum(most, total // least), 1).to(tl.int64)
    whole = tl.where((lanes <= count) & ((longest - merging) * count <= total), longest, 0)
    count = tl.where(whole > 0, lanes, count)
    total = tl.where(whole > 0, lanes * longest, total)
    long = tl.where(real & (whole > 0), longest, long)
    before = tl.where(whole > 0, whole - seen, beginning)
    ends = tl.cumsum(long, 0)
    starts = ends - long
    if tl.program_id(0) == 0:
        slot, tokens, origin, own, parts = _lane_of(slots, positions, lane, real, starts, total, count, whole, beginning, PAGE, WINDOW)
        _note(lane_numbers + lane * LANE, real, slot, tokens, origin, own, parts)
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = number < count
    begin = (tl.minimum(number, count) * total // count).to(tl.int32)
    end = (tl.minimum(number + 1, count) * total // count).to(tl.int32)
    passed = real[None, :] & (ends[None, :] <= begin[:, None])
    first = tl.minimum(tl.sum(passed.to(tl.int32), 1), lanes - 1)
    reached = real[None, :] & ((starts + before)[None, :] < end[:, None])
    after = tl.where(used, tl.sum(reached.to(tl.int32), 1), 0)
    start = tl.sum(tl.where(lane[None, :] == first[:, None], starts[None, :], 0), 1)
    at = stretches + number * STRETCH
    inside = number < most
    tl.store(at, first, mask=inside)
    tl.store(at + 1, after, mask=inside)
    tl.store(at + 2, begin, mask=inside)
    tl.store(at + 3, end, mask=inside)
    slot, tokens, origin, own, parts = _lane_of(slots, positions, first, inside, start, total, count, whole, beginning, PAGE, WINDOW)
    _note(at + 4, inside, slot, tokens, origin, own, parts)


def plan_of(slots: Tensor, positions: Tensor, page: int, window: int, kv_heads: int) -> Plan:
    """The plan of a step with one token per lane at `positions`, for layers with this window (0: without one)."""
    lanes, most = len(slots), max(1, RESIDENT * multiprocessors(slots.device) // kv_heads)
    stretches = torch.empty(most, STRETCH.value, dtype=torch.int32, device=slots.device)
    numbers = torch.empty(lanes, LANE.value, dtype=torch.int32, device=slots.device)
    width = triton.next_power_of_2(lanes)
    block = max(1, min(16, 4096 // width))
    _cut[(triton.cdiv(most, block),)](
        slots, positions, stretches, numbers, lanes, most, LEAST, BEGINNING, MERGING,
        PAGE=page, WINDOW=window, BLOCK=block, LANES=width, num_warps=4 if width <= 1024 else 16,
    )  # fmt: skip
    return Plan(stretches, numbers, window)


@triton.jit
def _lane(at):
    """The numbers of a lane."""
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4)


@triton.jit
def _bring(
    cache, chain, first, last, kv_head, values,
    KV: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, EIGHT: tl.constexpr, BRING: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Ask for the first BRING pages of those from `first` to `last`: they come to the GPU's cache while something else is done."""
    which = tl.arange(0, THREADS)  # a thread asks for the keys or for the values of a page
    wanted = (which < 2 * BRING) & (first + which // 2 < last)
    page = tl.load(chain + first + which // 2, mask=wanted, other=0).to(tl.int64)
    LONG: tl.constexpr = PAGE * (SIZE + 4) if EIGHT else PAGE * SIZE
    place = (cache + (page * KV + kv_head) * LONG + (which % 2) * values).to(tl.int64, bitcast=True)
    count = tl.where(wanted, LONG * (cache.dtype.element_ty.primitive_bitwidth // 8), 0)
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.gt.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r", [place, count], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _pages_of(begin, end, origin, length, PAGE: tl.constexpr, WINDOW: tl.constexpr):
    """The first page that a stretch has of a lane, and the one after its last."""
    first = tl.maximum(begin - origin, tl.maximum(length - WINDOW, 0) // PAGE if WINDOW else 0)
    return first, tl.minimum(end - origin, tl.cdiv(length, PAGE))


@triton.jit(do_not_specialize=["table_stride", "lanes", "room"])
def _balanced(
    qkv, cache, scales, shift, table, stretches, lane_numbers, cos, sin, q_norm, k_norm, out, parts, sums, arrivals,
    row_stride, table_stride, values, scale, eps, lanes, room, part_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr,
    NORM: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr, EIGHT: tl.constexpr, SHIFT: tl.constexpr, PARTS: tl.constexpr,
    NEXT: tl.constexpr, AHEAD: tl.constexpr, BRING: tl.constexpr, THREADS: tl.constexpr, LOT: tl.constexpr,
):  # fmt: skip
    kv_head, number = tl.program_id(0), tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV
    KIND: tl.constexpr = out.dtype.element_ty
    at = stretches + number * STRETCH
    first_lane, after = tl.load(at), tl.load(at + 1)
    begin, end = tl.load(at + 2), tl.load(at + 3)
    slot, length, origin, stretch, count = _lane(at + 4)
    if BRING and first_lane < after:
        first, last = _pages_of(begin, end, origin, length, PAGE, WINDOW)
        chain = table + slot.to(tl.int64) * table_stride
        _bring(cache, chain, first, last, kv_head, values, KV, SIZE, PAGE, EIGHT, BRING, THREADS)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    inside = tl.arange(0, PAGE)
    real = row < GROUP
    for step in range(after - first_lane):
        this = first_lane + step
        next_slot, next_length, next_origin, next_stretch, next_count = _lane(lane_numbers + tl.minimum(this + 1, lanes - 1) * LANE)
        lane = this.to(tl.int64)
        pages = tl.cdiv(length, PAGE)
        first, last = _pages_of(begin, end, origin, length, PAGE, WINDOW)
        own = qkv + lane * row_stride
        turn = (length - 1).to(tl.int64) * SIZE
        chain = table + slot.to(tl.int64) * table_stride
        following = tl.load(chain + first).to(tl.int64)
        if BRING and this + 1 < after:
            next_first, next_last = _pages_of(begin, end, next_origin, next_length, PAGE, WINDOW)
            next_chain = table + next_slot.to(tl.int64) * table_stride
            _bring(cache, next_chain, next_first, next_last, kv_head, values, KV, SIZE, PAGE, EIGHT, BRING, THREADS)
        if last == pages:  # this program reads the page of the new token: it puts its key and value there
            page = tl.load(chain + pages - 1).to(tl.int64)
            _keep(
                own, cache, scales, shift, page, cos, sin, k_norm, kv_head, length, turn, column, values, eps, part_stride,
                HEADS, KV, SIZE, PAGE, NORM, EIGHT, SHIFT, PARTS, KIND,
            )  # fmt: skip
        tl.debug_barrier()  # what one thread has written the others read
        heads = own + kv_head * GROUP * SIZE
        q = _turned(heads, q_norm, cos + turn, sin + turn, row, column, real, eps, part_stride, SIZE, NORM, PARTS, KIND)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sum_ = tl.zeros([ROWS, SIZE], tl.float32)
        for number_of_page in range(first, last):
            if NEXT:
                page = following
                following = tl.load(chain + tl.minimum(number_of_page + 1, pages - 1)).to(tl.int64)
            else:
                page = tl.load(chain + number_of_page).to(tl.int64)
            rest = length - number_of_page * PAGE
            k, v, of_k, of_v = _read(cache, scales, page * KV + kv_head, inside, column, values, rest, SIZE, PAGE, EIGHT, LOT)
            key = number_of_page * PAGE + inside
            known = key < length
            if WINDOW:
                known = known & (key >= length - WINDOW)
            score = _scores(q, k, of_k, shift, number_of_page * PAGE, kv_head, inside, column, KV, SIZE, EIGHT, SHIFT, PRECISION)
            score = tl.where(known[None, :], scale * score, float("-inf"))
            top, total, sum_ = _weighed(score, q, v, of_v, top, total, sum_, EIGHT, PRECISION)
        head = kv_head * GROUP + row
        found = sum_ / total[:, None]
        if count == 1:
            target = out + lane * HEADS * SIZE + head[:, None] * SIZE + column[None, :]
            tl.store(target, found.to(KIND), mask=real[:, None])
        else:
            part = head * room + number + this
            tl.store(parts + part[:, None] * SIZE + column[None, :], found, mask=real[:, None])
            tl.store(sums + part, top + tl.log2(total), mask=real)
            tl.debug_barrier()  # all of this part is written before it counts as arrived
            arrival = arrivals + lane * KV + kv_head
            if tl.atomic_add(arrival, 1, sem="acq_rel") == count - 1:  # the last one: all parts are there
                tl.store(arrival, 0)  # as the next layer expects it
                here = tl.arange(0, GROUP_ROWS)
                head_here = kv_head * GROUP + here
                base = head_here * room + stretch + this
                merged = _merged(parts, sums, base, count, column, here < GROUP, SIZE, GROUP_ROWS, AHEAD)
                target = out + lane * HEADS * SIZE + head_here[:, None] * SIZE + column[None, :]
                tl.store(target, merged.to(KIND), mask=(here < GROUP)[:, None])
        slot, length, origin, stretch, count = next_slot, next_length, next_origin, next_stretch, next_count


@triton.jit
def _merged(parts, sums, base, count, column, real, SIZE: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr):
    """As `paged_attention._merged`, AHEAD parts at a time."""
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sum_ = tl.zeros([ROWS, SIZE], tl.float32)
    for number in range(0, count, AHEAD):
        for more in tl.static_range(AHEAD):
            there = real & (number + more < count)
            size = tl.load(sums + base + number + more, mask=there, other=float("-inf"), cache_modifier=".cg")
            place = parts + (base + number + more)[:, None] * SIZE + column[None, :]
            part = tl.load(place, mask=there[:, None], other=0.0, cache_modifier=".cg")
            higher = tl.maximum(top, size)
            fade, weight = tl.exp2(top - higher), tl.exp2(size - higher)
            total = total * fade + weight
            sum_ = sum_ * fade[:, None] + part * weight[:, None]
            top = higher
    return sum_ / total[:, None]


def attend_balanced(qkv: Tensor, cache: Tensor, layer: Any, tables: Any, plan: Plan, shape: Any, arrivals: Tensor) -> Tensor:
    """As `paged_attention.attend_singles`, for the slots and positions that the plan was made of."""
    lanes, size = qkv.shape[-2], shape.head_dim
    room = lanes + len(plan.stretches)  # parts: from one to the next, the lane or the stretch is another one
    out = torch.empty(lanes, shape.heads * size, dtype=tables.cos[0].dtype, device=qkv.device)
    parts = torch.empty(shape.heads * room * size, dtype=torch.float32, device=qkv.device)
    sums = torch.empty(shape.heads * room, dtype=torch.float32, device=qkv.device)
    warps = 2 * WARPS if cache.dtype == torch.int8 else WARPS
    _balanced[(shape.kv_heads, len(plan.stretches))](
        qkv, cache, scales_of(cache), layer.shift, tables.pages, plan.stretches, plan.lanes, tables.cos[layer.rotation],
        tables.sin[layer.rotation], layer.q_norm, layer.k_norm, out, parts, sums, arrivals, qkv.stride(-2), tables.pages.stride(0),
        cache.stride(0), shape.scale * LOG2_E, shape.eps, lanes, room, qkv.stride(0),
        HEADS=shape.heads, KV=shape.kv_heads, SIZE=size, PAGE=cache.shape[3], ROWS=max(16, triton.next_power_of_2(shape.group)),
        GROUP_ROWS=triton.next_power_of_2(shape.group), NORM=layer.q_norm is not None, WINDOW=layer.window, PRECISION=_precision(out),
        EIGHT=cache.dtype == torch.int8, SHIFT=layer.shift is not None, PARTS=len(qkv) if qkv.dim() == 3 else 1, NEXT=NEXT,
        AHEAD=AHEAD, BRING=BRING if since_hopper(qkv.device) else 0, THREADS=32 * warps, LOT=paged_attention.LOT,
        num_warps=warps,
        num_stages=_stages(qkv.device, _page_bytes(cache, layer, size), STAGES),
    )  # fmt: skip
    return out
