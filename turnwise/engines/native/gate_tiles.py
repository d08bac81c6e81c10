"""The two halves of an MLP with the activation between, as one kernel for Hopper GPUs (`hopper_tiles.cu`).

The library writes both halves and another kernel reads them again; here they stay in registers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnwise.engines.native.hopper_tiles import Tile, kernel_of, launch


def gate_tiles(x: Tensor, weight: Tensor, kind: str, tile: Tile, overlap: bool = False) -> Tensor:
    """activation(x times the weight's first half) · (x times its second half). `weight` is [2 · size, width]; see `hopper_tiles.fits`."""
    rows, size = len(x), len(weight) // 2
    out = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    kernel = kernel_of(tile._replace(group=0), 0, kind != "silu", overlap, x.device)
    launch(kernel, x, weight, tile, -(-size // tile.columns), tile.memory(0), overlap, [out], size)
    return out
