"""The output layer and the sampling on Hopper GPUs, by a product that sums up its tiles (`tiles.cu`).

Where every token may be drawn, no logits are written. The product keeps of each tile of the vocabulary and row what sampling needs: the
largest logit, where it is, and the sums of weights by parts of 16 tokens. `sample_tiles.py` finds the part in which the cumulative sum
passes the row's uniform number and computes the logits of this part again.

Where rows are truncated, logits are written, and the product also sums up what is not below two levels of a row, so that `sample_top_p.py`
reads few of them. The levels come from another product, with a sample of the vocabulary.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from turnwise.kernels.hopper.tiles import PIECE, ROWS, Tile, kernel_of, launch
from turnwise.kernels.sample_tiles import Drawing, _choose, _room
from turnwise.kernels.sample_top_p import CHUNK, SAMPLED, pick_levels, room_for, settle

WARPS = 8  # of the programs that draw


def tile_for(rows: int) -> Tile:
    """The tile for so many rows: up to 128, blocks share the rows, and beyond that the weights."""
    return Tile(96, 5, 1, 2) if rows <= ROWS else Tile(128, 4, 2, 1)


def draw_product(hidden: Tensor, head: Tensor, to: Drawing, tile: Tile | None = None, overlap: bool = False) -> None:
    """One token and its log-prob for every row of `hidden`, none of which is truncated; see `tiles.fits`."""
    (rows, width), size = hidden.shape, len(head)
    tile = tile or tile_for(rows)
    wide = 2 * tile.columns
    tiles, pieces = -(-size // wide), wide // PIECE
    tops, sums, wheres = _room(rows, tiles, hidden.device)
    parts = torch.empty(rows, tiles, pieces, dtype=torch.float32, device=hidden.device)
    kernel = kernel_of(tile._replace(group=0), 1, False, overlap, hidden.device)
    places = [parts, to.slots, to.floats, to.integers, tops, sums, wheres]
    launch(kernel, hidden, head, tile, tiles, tile.memory(1), overlap, places, size)
    part = min(512, width & -width)  # of the hidden size, read at once: a power of two that divides it
    _choose[(rows,)](
        hidden, head, tops, sums, wheres, parts, *to, hidden.stride(0), size, tiles,
        TILES=triton.next_power_of_2(tiles), TILE=wide, WIDTH=width, PART=part, FUSED=True, PIECES=pieces,
        num_warps=WARPS,
    )  # fmt: skip


def draw_truncated(hidden: Tensor, head: Tensor, to: Drawing, tile: Tile | None = None, overlap: bool = False) -> None:
    """One token and its log-prob for every row of `hidden`, with any settings; see `tiles.fits`."""
    rows, size = len(hidden), len(head)
    tile = tile or tile_for(rows)
    wide = 2 * tile.columns
    tiles, some = -(-size // wide), min(size, SAMPLED)
    sample = head[: size // some * some : size // some]
    found = room_for(rows, tiles, hidden.device)
    pick_levels(_logits(hidden, sample), CHUNK, to, found.levels, overlap)
    logits = torch.empty(rows, size, dtype=torch.float32, device=hidden.device)
    kernel = kernel_of(tile._replace(group=0), 2, False, overlap, hidden.device)
    places = [found.levels, found.above, to.slots, to.floats, to.integers, found.tops, found.totals, found.wheres]
    launch(kernel, hidden, head, tile, tiles, tile.memory(2), overlap, places, size, logits)
    settle(logits, to, found, wide, WARPS, overlap)


def _logits(hidden: Tensor, head: Tensor) -> Tensor:
    return torch.mm(hidden, head.t(), out_dtype=torch.float32)
