"""Sampling with top-p, top-k and min-p on a GPU, by many programs per row, which read every logit once.

`sample_rows.py` finds out which tokens are kept, and passes over a row's logits half a dozen times for that. Here only the token that was
drawn is looked at: it is kept if the tokens that are more likely hold less than top-p. A first kernel looks at a sample of the logits and
picks two levels between which the cut probably lies. A second one sums up tiles, as where nothing is truncated, and also what lies above
each level. A third one draws: the sums of tiles and levels bound what the more likely tokens hold, and that nearly always decides. Where
it does not, a fourth one reads the row's logits again, by several programs, and a fifth one draws with what it finds. Rows with top-k, and
those whose attempts are used up, are left to `sample_rows.py`. On Hopper GPUs the output layer's product can take the place of the second
kernel (`hopper/sample.py`), with levels from the logits of a sample of tokens.

The levels decide about time only. Token and log-prob are those of `sample_rows.py` except for rounding.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from turnwise.kernels.layer import allow_next, launching, wait_for_last
from turnwise.kernels.sample_rows import ATTEMPTS, BLOCK, STAGES, WARPS, _distance, _draw, _first_number, _next_number, _share
from turnwise.kernels.sample_tiles import Drawing, _of_tile, _room

SAMPLED, CHUNK = 2048, 32  # tokens of a sample, and how many of them are neighbours
LEVELS = 2
TILE = 1024  # tokens that are summed up together
PICKERS, SCANNERS = 1, 1  # warps of the programs that pick levels and sum up tiles
PARTS = 8  # programs that read a row again where sums of tiles and levels do not decide
SUMMED, SUMMERS = 4096, 8  # tokens that these sum at once, and their warps
HALVINGS = tl.constexpr(6)  # of the interval in which the cut lies, and of the shorter ones in which the levels do
NEAR = tl.constexpr(0.25)  # the length of the shorter ones, as a share
DOUBT, MOST_DOUBT = tl.constexpr(3.0), tl.constexpr(0.7)  # standard errors of the mass beyond the cut, as the sample has it; the most of it


@triton.jit
def _halve(d, weight, mass, low, high):
    """Half of (low, high]: the smallest distance beyond which there is no more than so much mass lies in it."""
    middle = (low + high) * 0.5
    enough = tl.sum(tl.where(d > middle, weight, 0.0), 0) <= mass
    return tl.where(enough, low, middle), tl.where(enough, middle, high)


@triton.jit
def _pick_levels(
    logits, slots, floats, integers, levels, row_stride, size, step,
    SAMPLED: tl.constexpr, CHUNK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Two logits below which there is a little more and a little less than 1 - top-p of the sample."""
    allow_next(OVERLAP)
    wait_for_last(OVERLAP)
    seq = tl.program_id(0)
    slot = tl.load(slots + seq).to(tl.int64)
    top_p = tl.load(floats + slot * 3 + 1)
    if (tl.load(integers + slot * 3) == 0) & (top_p < 1.0):
        temperature = tl.load(floats + slot * 3)
        index = tl.arange(0, SAMPLED)
        column = index // CHUNK * step + index % CHUNK
        value = tl.load(logits + seq.to(tl.int64) * row_stride + column, mask=column < size, other=float("-inf"))
        top = tl.max(value, 0)
        d = (top - value) / temperature
        weight = tl.exp(-d)
        whole = tl.sum(weight, 0)
        beyond = (1.0 - top_p) * whole
        bound = tl.maximum(-tl.log(beyond / SAMPLED) * 1.0001 + 1e-3, 0.0)  # all that lies farther is less than 1 - top_p
        low, high = bound * 0.0, bound
        for _halving in range(HALVINGS):
            low, high = _halve(d, weight, beyond, low, high)
        rest = tl.where(d > high, weight, 0.0)
        error = tl.sqrt(tl.sum(rest * rest, 0)) / tl.maximum(tl.sum(rest, 0), 1e-30)
        doubt = tl.minimum(DOUBT * error, MOST_DOUBT)
        near, near_end = tl.maximum(high - NEAR * bound, 0.0), high
        far, far_end = low, tl.minimum(low + NEAR * bound, bound)
        for _halving in range(HALVINGS):
            near, near_end = _halve(d, weight, (1.0 + doubt) * beyond, near, near_end)
            far, far_end = _halve(d, weight, (1.0 - doubt) * beyond, far, far_end)
        tl.store(levels + seq * 2, top - near_end * temperature)
        tl.store(levels + seq * 2 + 1, top - far_end * temperature)
    else:
        tl.store(levels + seq * 2 + tl.arange(0, 2), tl.full([2], float("inf"), tl.float32))


@triton.jit
def _scan(
    logits, slots, floats, levels, tops, sums, wheres, above, row_stride, size, tiles, all_tiles,
    TILE: tl.constexpr, LEVELS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Of one tile: the largest logit, the sum relative to it, its column, and the sum of what is not below each level."""
    allow_next(OVERLAP)
    wait_for_last(OVERLAP)
    score, weight, row, place = _of_tile(logits, slots, floats, tops, sums, wheres, row_stride, size, tiles, TILE)
    for level in tl.static_range(LEVELS):
        least = tl.load(levels + row * LEVELS + level)
        tl.store(above + level * all_tiles + place, tl.sum(tl.where(score >= least[:, None], weight, 0.0), 1))


@triton.jit
def _before(row, start, end, size, inverse, top, value, chosen, BLOCK: tl.constexpr):
    """What the tokens of an interval that are more likely than this one hold; of equally likely ones those with a smaller id count."""
    column = tl.arange(0, BLOCK)
    distance = (top - value) * inverse
    mass = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(start, end, BLOCK, num_stages=STAGES):
        d = _distance(row, first + column, size, inverse, top)
        mass += tl.where((d < distance) | ((d == distance) & (first + column < chosen)), tl.exp(-d), 0.0)
    return tl.sum(mass, 0)


@triton.jit
def _add_up(
    logits, slots, floats, tops, undone, parts, row_stride, size, tiles,
    TILES: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """`undone` names, for some rows, a token that sums of tiles could not decide about. This program adds up the probability of all more
    likely tokens in its part of such a row."""
    allow_next(OVERLAP)
    wait_for_last(OVERLAP)
    seq, part = tl.program_id(0), tl.program_id(1)
    chosen = tl.load(undone + seq) - 1
    if chosen >= 0:
        row = logits + seq.to(tl.int64) * row_stride
        inverse = 1.0 / tl.load(floats + tl.load(slots + seq).to(tl.int64) * 3)
        tile = tl.arange(0, TILES)
        top = tl.max(tl.load(tops + seq * tiles + tile, mask=tile < tiles, other=float("-inf")), 0)
        blocks = tl.cdiv(tl.cdiv(size, BLOCK), PARTS)
        start = part * blocks * BLOCK
        end = tl.minimum(start + blocks * BLOCK, size)
        tl.store(parts + seq * PARTS + part, _before(row, start, end, size, inverse, top, tl.load(row + chosen), chosen, BLOCK))


@triton.jit
def _settle(
    logits, slots, places, floats, integers, last, tokens, logprobs, levels, tops, sums, wheres, above, undone, parts, row_stride, size,
    tiles, all_tiles, TILES: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr, LEVELS: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Draw. Without PARTS, every row, until sums of tiles and levels do not decide: the token is noted in `undone`, plus one, or -1 if
    the row is left over for another reason. With PARTS, the rows with such a token, with the sums of what is more likely."""
    allow_next(OVERLAP)
    wait_for_last(OVERLAP)
    seq = tl.program_id(0)
    doubtful = size * 0
    if PARTS:
        doubtful = tl.load(undone + seq)
        if doubtful <= 0:
            return
    row = logits + seq.to(tl.int64) * row_stride
    slot = tl.load(slots + seq).to(tl.int64)
    inverse = 1.0 / tl.load(floats + slot * 3)
    top_p, min_p = tl.load(floats + slot * 3 + 1), tl.load(floats + slot * 3 + 2)
    greedy = tl.load(integers + slot * 3) != 0
    tile = tl.arange(0, TILES)
    real = tile < tiles
    highest = tl.load(tops + seq * tiles + tile, mask=real, other=float("-inf"))
    top = tl.max(highest, 0)
    scale = tl.exp((highest - top) * inverse)
    mass = tl.load(sums + seq * tiles + tile, mask=real, other=0.0) * scale
    whole = tl.sum(mass, 0)
    best = tl.load(wheres + seq * tiles + tl.min(tl.where(highest == top, tile, tiles - 1), 0))
    likely = tl.where(min_p > 0, -tl.log(tl.maximum(min_p, 1e-38)), float("inf"))
    level = tl.arange(0, LEVELS)
    least = tl.load(levels + seq * LEVELS + level)
    within = tl.sum(
        tl.load(above + level[:, None] * all_tiles + seq * tiles + tile[None, :], mask=real[None, :], other=0.0) * scale[None, :], 1
    )  # fmt: skip
    target = top_p * whole

    chosen, value = best, top
    good = greedy
    mixed = _first_number(tl.load(integers + slot * 3 + 2), tl.load(places + seq))
    attempt = size * 0
    unknown = greedy & ~greedy
    going = ~greedy & (tl.load(integers + slot * 3 + 1) >= size)
    while going:
        threshold = _share(mixed) * whole.to(tl.float64)
        passed = (tl.cumsum(mass.to(tl.float64), 0) > threshold) & (mass > 0)
        found = tl.min(tl.where(passed, tile, tiles), 0)
        found = tl.where(found == tiles, tl.max(tl.where(mass > 0, tile, 0), 0), found)
        earlier = tl.sum(tl.where(tile < found, mass.to(tl.float64), 0.0), 0)
        inside = tl.arange(0, WIDE)
        column = found * TILE + inside
        score = tl.load(row + column, mask=(column < size) & (inside < TILE), other=float("-inf"))
        weight = tl.exp((score - top) * inverse)
        passed = (earlier + tl.cumsum(weight, 0).to(tl.float64) > threshold) & (weight > 0)
        chosen = tl.min(tl.where(passed, column, size), 0)
        chosen = tl.where(chosen == size, tl.max(tl.where(weight > 0, column, 0), 0), chosen)  # rounding, as in the other draws
        value = tl.load(row + chosen)
        one = tl.exp((value - top) * inverse)
        most = tl.minimum(tl.sum(tl.where(highest >= value, mass, 0.0), 0), tl.min(tl.where(least <= value, within, float("inf")), 0)) - one
        fewest = tl.maximum(tl.sum(tl.where(highest > value, scale, 0.0), 0), tl.max(tl.where(least > value, within, 0.0), 0))
        near = (top - value) * inverse <= likely
        good = near & ((top_p >= 1.0) | (chosen == best) | (most < target))
        unknown = near & ~good & ~(fewest >= target)
        if PARTS and unknown:
            if chosen + 1 == doubtful:
                before = tl.sum(tl.load(parts + seq * PARTS + tl.arange(0, PARTS)), 0)
            else:
                before = _before(row, 0, size, size, inverse, top, value, chosen, BLOCK)
            good = before < target
            unknown = good & ~good
        attempt += 1
        going = ~good & ~unknown & (attempt < ATTEMPTS)
        mixed = _next_number(mixed)
    if good:
        tl.store(tokens + seq, chosen.to(tl.int64))
        tl.store(last + slot, chosen.to(tl.int64))
        tl.store(logprobs + seq, (value - top) * inverse - tl.log(whole))
    tl.store(undone + seq, tl.where(good, 0, tl.where(unknown, chosen + 1, -1)))


@triton.jit
def _rest(
    logits, slots, places, floats, integers, last, tokens, logprobs, undone, row_stride, size, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Rows that are not done yet. This is a separate kernel, since it needs many registers."""
    allow_next(OVERLAP)
    wait_for_last(OVERLAP)
    if tl.load(undone + tl.program_id(0)) != 0:
        _draw(logits, slots, places, floats, integers, last, tokens, logprobs, row_stride, size, BLOCK)


class Sums(NamedTuple):
    """Of each row the two levels, and of each of its tiles the largest logit, the sum relative to it, where it is, and the sums of what is
    not below each level."""

    levels: Tensor
    tops: Tensor
    totals: Tensor
    wheres: Tensor
    above: Tensor


def room_for(rows: int, tiles: int, device: torch.device) -> Sums:
    numbers = torch.empty(LEVELS, rows, tiles, dtype=torch.float32, device=device)
    return Sums(torch.empty(rows, LEVELS, dtype=torch.float32, device=device), *_room(rows, tiles, device), numbers)


def pick_levels(logits: Tensor, step: int, to: Drawing, levels: Tensor, overlap: bool) -> None:
    """Levels from the first 32 of every `step` logits, 2,048 in all."""
    _pick_levels[(len(logits),)](
        logits, to.slots, to.floats, to.integers, levels, logits.stride(0), logits.shape[1], step,
        SAMPLED=SAMPLED, CHUNK=CHUNK, OVERLAP=overlap, num_warps=PICKERS, **launching(overlap),
    )  # fmt: skip


def settle(logits: Tensor, to: Drawing, found: Sums, tile: int, warps: int, overlap: bool) -> None:
    """Draw, once tiles of so many tokens are summed up."""
    (rows, size), (_, tiles), stride, way = logits.shape, found.tops.shape, logits.stride(0), launching(overlap)
    many, block = triton.next_power_of_2(tiles), min(BLOCK, triton.next_power_of_2(size))
    summed = min(SUMMED, block)
    undone = torch.empty(rows, dtype=torch.int32, device=logits.device)
    parts = torch.empty(rows, PARTS, dtype=torch.float32, device=logits.device)
    for late in (0, PARTS):
        if late:
            _add_up[(rows, PARTS)](
                logits, to.slots, to.floats, found.tops, undone, parts, stride, size, tiles,
                TILES=many, PARTS=PARTS, BLOCK=summed, OVERLAP=overlap, num_warps=SUMMERS, **way,
            )  # fmt: skip
        _settle[(rows,)](
            logits, *to, *found, undone, parts, stride, size, tiles, rows * tiles, TILES=many, TILE=tile,
            WIDE=triton.next_power_of_2(tile), LEVELS=LEVELS, PARTS=late, BLOCK=summed, OVERLAP=overlap, num_warps=warps, **way,
        )  # fmt: skip
    _rest[(rows,)](logits, *to, undone, stride, size, BLOCK=block, OVERLAP=overlap, num_warps=WARPS, **way)


def draw_nucleus(logits: Tensor, to: Drawing, tile: int = TILE, warps: int = 4, overlap: bool = False) -> None:
    """One token and its log-prob for every row of `logits` (float32), with any settings; fast where there is no top-k. `warps`: of the
    programs that draw. `overlap`: a kernel may begin before the last one has ended."""
    rows, size = logits.shape
    tile = min(tile, triton.next_power_of_2(size))
    tiles = triton.cdiv(size, tile)
    found = room_for(rows, tiles, logits.device)
    pick_levels(logits, max(CHUNK, size // (SAMPLED // CHUNK) // CHUNK * CHUNK), to, found.levels, overlap)
    _scan[(tiles, rows)](
        logits, to.slots, to.floats, *found, logits.stride(0), size, tiles, rows * tiles,
        TILE=tile, LEVELS=LEVELS, OVERLAP=overlap, num_warps=SCANNERS, **launching(overlap),
    )  # fmt: skip
    settle(logits, to, found, tile, warps, overlap)
