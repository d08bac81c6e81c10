"""The draw where every token may be drawn: no top-k, no top-p, no min-p. The usual case in training.

The vocabulary is cut into tiles. Of each tile a first kernel keeps three numbers per row: the largest logit, the sum of the weights
relative to it, and which token the largest is. It reads logits (`draw_tiles`), or it is the output layer's matrix product itself
(`draw_fused`), so that logits are never written. A second kernel merges the tiles of a row, finds the tile in which the cumulative sum
passes the row's uniform number, and looks at this tile alone; without logits it computes them again. Token, log-prob and uniform number
are those of `draw_kernel` except for rounding; a greedy row takes the largest, of equal ones the smallest id. `head_tiles` is a faster
output layer for Hopper GPUs."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from turnwise.engines.native.draw_kernel import _first_number, _share

TILE = 2048  # tokens, where logits are read


class Blocks(NamedTuple):
    """One program of the fused product: rows × tokens, in parts of the hidden size."""

    rows: int
    tile: int
    part: int
    warps: int
    stages: int


class Drawing(NamedTuple):
    """Which lanes draw, with which settings by slot, and where the results go."""

    slots: Tensor
    places: Tensor
    floats: Tensor
    integers: Tensor
    last: Tensor
    tokens: Tensor
    logprobs: Tensor


@triton.jit
def _sum_up(score, inverse, column, size):
    """Of each row of a tile: the largest, the sum relative to it, its column, and all weights relative to it."""
    top = tl.max(score, 1)
    base = tl.where(top > float("-inf"), top, 0.0)
    weight = tl.exp((score - base[:, None]) * inverse[:, None])
    total = tl.sum(weight, 1)  # NaN stays NaN
    where = tl.min(tl.where(score == top[:, None], column[None, :], size - 1), 1)
    return top, total, where, weight


@triton.jit
def _of_tile(logits, slots, floats, tops, sums, wheres, row_stride, size, tiles, TILE: tl.constexpr):
    """Sum up this program's tile of logits; returns its logits, their weights, its row, and its place among the tiles of all rows."""
    tile, row = tl.program_id(0), tl.program_id(1) + tl.arange(0, 1)
    column = tile * TILE + tl.arange(0, TILE)
    source = logits + row.to(tl.int64)[:, None] * row_stride + column[None, :]
    score = tl.load(source, mask=column[None, :] < size, other=float("-inf"))
    inverse = 1.0 / tl.load(floats + tl.load(slots + row).to(tl.int64) * 3)
    top, total, where, weight = _sum_up(score, inverse, column, size)
    place = row * tiles + tile
    tl.store(tops + place, top)
    tl.store(sums + place, total)
    tl.store(wheres + place, where)
    return score, weight, row, place


@triton.jit
def _of_logits(logits, slots, floats, tops, sums, wheres, row_stride, size, tiles, TILE: tl.constexpr):
    _of_tile(logits, slots, floats, tops, sums, wheres, row_stride, size, tiles, TILE)


@triton.jit
def _of_hidden(
    hidden, head, bias, slots, floats, tops, sums, wheres, rows, size, tiles,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(1)
    column = tile * TILE + tl.arange(0, TILE)
    part = tl.arange(0, PART)
    x = hidden + tl.minimum(row, rows - 1)[:, None] * WIDTH + part[None, :]
    w = head + tl.minimum(column, size - 1).to(tl.int64)[None, :] * WIDTH + part[:, None]
    score = tl.zeros([ROWS, TILE], tl.float32)
    for start in range(0, WIDTH, PART):
        score = tl.dot(tl.load(x + start), tl.load(w + start), score, input_precision=PRECISION)
    if BIAS:
        score += tl.load(bias + tl.minimum(column, size - 1)).to(tl.float32)[None, :]
    score = tl.where(column[None, :] < size, score, float("-inf"))
    real = row < rows
    inverse = 1.0 / tl.load(floats + tl.load(slots + row, mask=real, other=0).to(tl.int64) * 3)
    top, total, where, _weight = _sum_up(score, inverse, column, size)
    tl.store(tops + row * tiles + tile, top, mask=real)
    tl.store(sums + row * tiles + tile, total, mask=real)
    tl.store(wheres + row * tiles + tile, where, mask=real)


@triton.jit
def _choose(
    source, head, bias, tops, sums, wheres, pieces, slots, places, floats, integers, last, tokens, logprobs, row_stride, size, tiles,
    TILES: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr, FUSED: tl.constexpr, BIAS: tl.constexpr,
    PIECES: tl.constexpr,
):  # fmt: skip
    """Tokens and log-probs. With several PIECES the sums of the parts of a tile are known, and one of these is looked at."""
    lane = tl.program_id(0)
    slot = tl.load(slots + lane).to(tl.int64)
    inverse = 1.0 / tl.load(floats + slot * 3)
    greedy = tl.load(integers + slot * 3) != 0
    tile = tl.arange(0, TILES)
    real = tile < tiles
    highest = tl.load(tops + lane * tiles + tile, mask=real, other=float("-inf"))
    top = tl.max(highest, 0)
    mass = tl.load(sums + lane * tiles + tile, mask=real, other=0.0) * tl.exp((highest - top) * inverse)
    whole = tl.sum(mass, 0)
    threshold = _share(_first_number(tl.load(integers + slot * 3 + 2), tl.load(places + lane))) * whole.to(tl.float64)
    passed = (tl.cumsum(mass.to(tl.float64), 0) > threshold) & (mass > 0)
    found = tl.min(tl.where(passed, tile, tiles), 0)
    found = tl.where(found == tiles, tl.max(tl.where(mass > 0, tile, 0), 0), found)
    found = tl.where(greedy, tl.min(tl.where(highest == top, tile, tiles - 1), 0), found)
    before = tl.sum(tl.where(tile < found, mass.to(tl.float64), 0.0), 0)

    column = found * TILE + tl.arange(0, TILE // PIECES)
    if PIECES > 1:
        piece = tl.arange(0, triton.next_power_of_2(PIECES))
        held = tl.load(pieces + (lane.to(tl.int64) * tiles + found) * PIECES + piece, mask=piece < PIECES, other=0.0)
        held *= tl.exp((tl.load(tops + lane * tiles + found) - top) * inverse)
        passed = (before + tl.cumsum(held, 0).to(tl.float64) > threshold) & (held > 0)
        which = tl.min(tl.where(passed, piece, PIECES), 0)
        which = tl.where(which == PIECES, tl.max(tl.where(held > 0, piece, 0), 0), which)
        before += tl.sum(tl.where(piece < which, held, 0.0), 0).to(tl.float64)
        column += which * (TILE // PIECES)
    inside = column < size
    if FUSED:
        value = tl.zeros([TILE // PIECES], tl.float32)
        row = tl.minimum(column, size - 1).to(tl.int64)[:, None] * WIDTH
        for start in range(0, WIDTH, PART):
            part = start + tl.arange(0, PART)
            x = tl.load(source + lane.to(tl.int64) * row_stride + part).to(tl.float32)
            value += tl.sum(tl.load(head + row + part[None, :]).to(tl.float32) * x[None, :], 1)
        if BIAS:
            value += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value, float("-inf"))
    else:
        value = tl.load(source + lane.to(tl.int64) * row_stride + column, mask=inside, other=float("-inf"))
    weight = tl.exp((value - top) * inverse)
    passed = (before + tl.cumsum(weight, 0).to(tl.float64) > threshold) & (weight > 0)
    chosen = tl.min(tl.where(passed, column, size), 0)
    chosen = tl.where(
        chosen == size, tl.max(tl.where(weight > 0, column, 0), 0), chosen
    )  # rounding can leave the threshold beyond the last
    chosen = tl.where(greedy, tl.load(wheres + lane * tiles + found), chosen)
    logit = tl.where(greedy, top, tl.sum(tl.where(column == chosen, value, 0.0), 0))
    tl.store(tokens + lane, chosen.to(tl.int64))
    tl.store(last + slot, chosen.to(tl.int64))
    tl.store(logprobs + lane, (logit - top) * inverse - tl.log(whole))


def draw_tiles(logits: Tensor, to: Drawing, tile: int = TILE) -> None:
    """One token and its log-prob for every row of `logits` (float32), none of which is truncated."""
    rows, size = logits.shape
    tile = min(tile, triton.next_power_of_2(size))
    tiles = triton.cdiv(size, tile)
    tops, sums, wheres = _room(rows, tiles, logits.device)
    _of_logits[(tiles, rows)](
        logits, to.slots, to.floats, tops, sums, wheres, logits.stride(0), size, tiles, TILE=tile, num_warps=4
    )  # fmt: skip
    _choose[(rows,)](
        logits, logits, logits, tops, sums, wheres, sums, *to, logits.stride(0), size, tiles,
        TILES=triton.next_power_of_2(tiles), TILE=tile, WIDTH=1, PART=1, FUSED=False, BIAS=False, PIECES=1, num_warps=4,
    )  # fmt: skip


def draw_fused(hidden: Tensor, head: Tensor, bias: Tensor | None, to: Drawing, blocks: Blocks | None = None) -> None:
    """One token and its log-prob for every row of `hidden` [rows, width]; `head` [vocabulary, width] makes logits of it. See `fusible`."""
    (rows, width), size = hidden.shape, len(head)
    blocks = blocks or blocks_for(rows, width)
    tiles = triton.cdiv(size, blocks.tile)
    tops, sums, wheres = _room(rows, tiles, hidden.device)
    factor = hidden if bias is None else bias
    _of_hidden[(triton.cdiv(rows, blocks.rows), tiles)](
        hidden, head, factor, to.slots, to.floats, tops, sums, wheres, rows, size, tiles,
        WIDTH=width, ROWS=blocks.rows, TILE=blocks.tile, PART=blocks.part, BIAS=bias is not None,
        PRECISION="ieee" if hidden.dtype == torch.float32 else "tf32", num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    _choose[(rows,)](
        hidden, head, factor, tops, sums, wheres, sums, *to, hidden.stride(0), size, tiles,
        TILES=triton.next_power_of_2(tiles), TILE=blocks.tile, WIDTH=width, PART=min(blocks.part, 64), FUSED=True, BIAS=bias is not None,
        PIECES=1, num_warps=8,
    )  # fmt: skip


def fusible(hidden: Tensor, head: Tensor) -> bool:
    """Whether the fused product takes these: rows without gaps, of a size that divides into parts."""
    return bool(hidden.is_contiguous() and head.is_contiguous() and hidden.dtype == head.dtype and hidden.shape[1] % 16 == 0)


def blocks_for(rows: int, width: int) -> Blocks:
    """The blocks for so many rows: one block of rows up to 128, so that the weights are read once."""
    part = next(part for part in (64, 32, 16) if width % part == 0)
    if rows <= 64:
        return Blocks(max(16, triton.next_power_of_2(rows)), 128, part, 4, 4)
    return Blocks(128, 128, part, 8, 4) if rows <= 128 else Blocks(128, 256, part, 8, 3)


def _room(rows: int, tiles: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    tops, sums = torch.empty(2, rows, tiles, dtype=torch.float32, device=device)
    return tops, sums, torch.empty(rows, tiles, dtype=torch.int32, device=device)
