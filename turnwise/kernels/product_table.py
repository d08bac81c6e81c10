"""Which products of a layer the engine's own kernels compute, and in which blocks: what was measured on an H200 to beat the library. Shapes
that are not listed, and more rows than a line's bound, are left to the library."""

from __future__ import annotations

from typing import NamedTuple

from turnwise.kernels.hopper.tiles import Tile


class Blocks(NamedTuple):
    """One program of a product: rows × columns, in parts of the inner size. `split`: among how many programs the inner size is divided.
    `bulk`: tiles are copied by TMA. `ahead`: parts of the weights that are asked for before the last kernel has ended."""

    rows: int
    columns: int
    part: int
    split: int = 1
    warps: int = 4
    stages: int = 4
    bulk: bool = False
    ahead: int = 0


# The product after attention asks for no weights ahead: that makes a whole step slower.
Lines = tuple[tuple[int, Blocks], ...]
MEASURED: dict[tuple[str, int, int], Lines] = {  # by kind, inner size and outer size: up to so many rows, these blocks
    ("down", 8960, 1536): (
        (16, Blocks(16, 64, 128, 5, 4, 5, True, 1)),
        (32, Blocks(32, 32, 128, 5, 4, 5, True, 1)),
        (64, Blocks(64, 64, 128, 5, 4, 5, True, 1)),
        (128, Blocks(128, 64, 128, 5, 4, 4, True, 1)),  # alone as fast as the library; in a step, which it overlaps with, faster
    ),
    ("qkv", 1536, 2048): (
        (16, Blocks(16, 32, 128, 4, 4, 5, True, 1)),
        (32, Blocks(32, 32, 64, 4, 4, 5, True, 1)),
        (64, Blocks(64, 64, 128, 2, 4, 5, True, 1)),
        (128, Blocks(64, 32, 128, 1, 4, 6, True, 1)),
    ),
    ("out", 1536, 1536): (
        (16, Blocks(16, 64, 128, 4, 4, 6, False, 0)),
        (32, Blocks(32, 32, 128, 2, 4, 6, False, 0)),
        (64, Blocks(64, 32, 128, 2, 4, 5, True, 0)),
        (128, Blocks(64, 64, 128, 2, 4, 5, True, 0)),
    ),
    ("down", 4864, 896): (
        (16, Blocks(16, 32, 128, 4, 4, 6, False, 1)),
        (32, Blocks(32, 32, 128, 4, 4, 6, False, 1)),
        (64, Blocks(64, 32, 128, 4, 4, 5, True, 1)),
        (128, Blocks(64, 64, 128, 4, 4, 5, True, 1)),
        (256, Blocks(128, 64, 64, 4, 4, 7, True, 1)),
    ),
    ("qkv", 896, 1152): (
        (16, Blocks(16, 32, 128, 2, 4, 6, False, 1)),
        (32, Blocks(32, 16, 128, 2, 4, 5, True, 1)),
        (64, Blocks(64, 16, 128, 3, 4, 5, True, 1)),
        (128, Blocks(64, 64, 64, 3, 4, 6, False, 1)),
    ),
    ("out", 896, 896): (
        (16, Blocks(16, 32, 128, 2, 4, 6, False, 0)),
        (32, Blocks(32, 32, 128, 2, 4, 6, False, 0)),
        (64, Blocks(64, 32, 64, 4, 4, 6, False, 0)),
        (128, Blocks(64, 32, 128, 2, 4, 5, True, 0)),
        (256, Blocks(64, 64, 128, 2, 4, 5, True, 0)),
        (512, Blocks(64, 64, 128, 1, 4, 5, True, 0)),
    ),
}  # fmt: skip


TILES: dict[tuple[int, int], tuple[tuple[int, Tile | None], ...]] = {  # of a gated product, by inner and outer size: up to so many rows
    (1536, 17920): (
        (64, None),
        (128, Tile(72, 6, 1, 2)),
        (256, Tile(72, 6, 2, 1)),
        (512, Tile(96, 5, 1, 2)),
        (1024, Tile(112, 4, 2, 1)),
        (1000000, Tile(128, 4, 2, 1, 16)),
    ),
    (896, 9728): (
        (64, None),
        (128, Tile(40, 8, 1, 2)),
        (512, Tile(80, 5, 2, 1)),
        (1024, Tile(104, 4, 2, 1)),
        (4096, Tile(112, 4, 2, 1, 16)),
        (1000000, Tile(128, 4, 2, 1, 16)),
    ),
    (3584, 37888): (
        (64, None),
        (128, Tile(72, 6, 1, 2)),
        (256, Tile(96, 5, 2, 1)),
        (512, Tile(120, 4, 2, 1)),
        (1000000, Tile(128, 4, 2, 1)),
    ),
}  # fmt: skip


def tile_of(rows: int, width: int, size: int) -> Tile | None:
    """The tile for a gated product of so many rows on a Hopper GPU; None: `blocks_of` says who computes it."""
    return next((tile for most, tile in TILES.get((width, size), ()) if rows <= most), None)


def blocks_of(kind: str, rows: int, width: int, size: int) -> Blocks | None:
    """The blocks for a product of so many rows; None: the library is better, or nobody has measured."""
    return next((blocks for most, blocks in MEASURED.get((kind, width, size), ()) if rows <= most), None)


# Of products with weights in 4 bits: up to so many rows, the first line whose part divides the inner size. Chosen for the shapes of a 7B
# model on an H200; the lines for GPUs elsewhere have not been timed.
PACKED: dict[bool, Lines] = {  # on a Hopper GPU; elsewhere
    True: (
        (8, Blocks(8, 64, 256, 1, 4, 3)),
        (8, Blocks(8, 64, 128, 1, 2, 3)),
        (16, Blocks(16, 64, 128, 1, 2, 3)),
        (32, Blocks(32, 64, 256, 1, 4, 3)),
        (32, Blocks(32, 64, 128, 1, 2, 3)),
        (64, Blocks(64, 64, 128, 1, 4, 3)),
    ),
    False: (
        (8, Blocks(8, 64, 128, 1, 2, 3)),
        (16, Blocks(16, 64, 128, 1, 2, 3)),
        (32, Blocks(32, 64, 128, 1, 2, 3)),
        (64, Blocks(64, 128, 128, 1, 8, 3)),
    ),
}  # fmt: skip
PACKED_WARPS = 24  # per SM: the inner size is divided until there are so many
PACKED_CODES = 256  # of a row that a program takes at least
NOT_PACKED = (10, 11)  # generations for which Triton 3.6 compiled some of these blocks to a kernel that does nothing but fail


def packed_blocks(rows: int, width: int, size: int, processors: int, generation: int) -> Blocks | None:
    """The blocks for a product of so many rows with a weight in 4 bits, on a GPU of a generation (its compute capability; Hopper is 9).
    None: the library's, as one row is."""
    if generation < 8 or generation in NOT_PACKED:
        return None
    lines = (blocks for most, blocks in PACKED[generation == 9] if 1 < rows <= most)
    blocks = next((blocks for blocks in lines if width % blocks.part == 0), None)
    if blocks is None:
        return None
    steps, tiles = width // blocks.part, -(-size // blocks.columns)
    most = max(1, width // max(PACKED_CODES, blocks.part))
    split = max(1, min(most, -(-PACKED_WARPS * processors // (blocks.warps * tiles))))
    return blocks._replace(split=-(-steps // -(-steps // split)))  # none of them without a step
