"""Sampling on a GPU where every token may be drawn: no top-k, no top-p, no min-p. The usual case in training.

The vocabulary is cut into tiles. Of each tile a first kernel keeps three numbers per row: the largest logit, the sum of the weights
relative to it, and which token the largest is. It reads logits (`draw_tiles`), or it is the output layer's matrix product itself on a
Hopper GPU (`hopper/sample.py`), so that logits are never written. A second kernel merges the tiles of a row, finds the tile in which the
cumulative sum passes the row's uniform number, and looks at this tile alone; without logits it computes them again. Token, log-prob and
uniform number are those of `sample.py` except for rounding; a greedy row takes the largest, of equal ones the smallest id."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from turnwise.kernels.sample_rows import _first_number, _share

TILE = 2048  # tokens, where logits are read


class Drawing(NamedTuple):
    """Which seqs draw, with which settings by slot, and where the results go."""

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
def _choose(
    source, head, tops, sums, wheres, pieces, slots, places, floats, integers, last, tokens, logprobs, row_stride, size, tiles,
    TILES: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr, FUSED: tl.constexpr,
    PIECES: tl.constexpr,
):  # fmt: skip
    """Tokens and log-probs. With several PIECES the sums of the parts of a tile are known, and one of these is looked at."""
    seq = tl.program_id(0)
    slot = tl.load(slots + seq).to(tl.int64)
    inverse = 1.0 / tl.load(floats + slot * 3)
    greedy = tl.load(integers + slot * 3) != 0
    tile = tl.arange(0, TILES)
    real = tile < tiles
    highest = tl.load(tops + seq * tiles + tile, mask=real, other=float("-inf"))
    top = tl.max(highest, 0)
    mass = tl.load(sums + seq * tiles + tile, mask=real, other=0.0) * tl.exp((highest - top) * inverse)
    whole = tl.sum(mass, 0)
    threshold = _share(_first_number(tl.load(integers + slot * 3 + 2), tl.load(places + seq))) * whole.to(tl.float64)
    passed = (tl.cumsum(mass.to(tl.float64), 0) > threshold) & (mass > 0)
    found = tl.min(tl.where(passed, tile, tiles), 0)
    found = tl.where(found == tiles, tl.max(tl.where(mass > 0, tile, 0), 0), found)
    found = tl.where(greedy, tl.min(tl.where(highest == top, tile, tiles - 1), 0), found)
    before = tl.sum(tl.where(tile < found, mass.to(tl.float64), 0.0), 0)

    column = found * TILE + tl.arange(0, TILE // PIECES)
    if PIECES > 1:
        piece = tl.arange(0, triton.next_power_of_2(PIECES))
        held = tl.load(pieces + (seq.to(tl.int64) * tiles + found) * PIECES + piece, mask=piece < PIECES, other=0.0)
        held *= tl.exp((tl.load(tops + seq * tiles + found) - top) * inverse)
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
            x = tl.load(source + seq.to(tl.int64) * row_stride + part).to(tl.float32)
            value += tl.sum(tl.load(head + row + part[None, :]).to(tl.float32) * x[None, :], 1)
        value = tl.where(inside, value, float("-inf"))
    else:
        value = tl.load(source + seq.to(tl.int64) * row_stride + column, mask=inside, other=float("-inf"))
    weight = tl.exp((value - top) * inverse)
    passed = (before + tl.cumsum(weight, 0).to(tl.float64) > threshold) & (weight > 0)
    chosen = tl.min(tl.where(passed, column, size), 0)
    chosen = tl.where(
        chosen == size, tl.max(tl.where(weight > 0, column, 0), 0), chosen
    )  # rounding can leave the threshold beyond the last
    chosen = tl.where(greedy, tl.load(wheres + seq * tiles + found), chosen)
    logit = tl.where(greedy, top, tl.sum(tl.where(column == chosen, value, 0.0), 0))
    tl.store(tokens + seq, chosen.to(tl.int64))
    tl.store(last + slot, chosen.to(tl.int64))
    tl.store(logprobs + seq, (logit - top) * inverse - tl.log(whole))


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
        logits, logits, tops, sums, wheres, sums, *to, logits.stride(0), size, tiles,
        TILES=triton.next_power_of_2(tiles), TILE=tile, WIDTH=1, PART=1, FUSED=False, PIECES=1, num_warps=4,
    )  # fmt: skip


def _room(rows: int, tiles: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    tops, sums = torch.empty(2, rows, tiles, dtype=torch.float32, device=device)
    return tops, sums, torch.empty(rows, tiles, dtype=torch.int32, device=device)
