"""Products for Hopper GPUs of which not all that is multiplied is written (`tiles.cu`): how they are compiled and launched.

Parts of x and of the weights that several SMs need are sent to all of them by one copy (TMA multicast), which neither the library does with
so few rows nor Triton at all. `gate_tiles` computes both halves of an MLP with the activation between: the library writes both halves and
another kernel reads them again, here they stay in registers. `sample.py` is the output layer with the sampling.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from ctypes import c_int, c_void_p
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turnwise.kernels.hopper import driver
from turnwise.kernels.hopper.driver import ROOM, box_map, clusters, loaded

ROWS, INNER = 128, 64  # of a tile, and of one part of the inner size
PIECE = 16  # columns of an output layer whose weights are summed
STORED = 32  # columns of an output layer that a warp writes at once, of 16 rows
THREADS = 384


class Tile(NamedTuple):
    """One block's tile: `columns` of the product, a multiple of 8; `stages` parts on their way; `down` × `across` blocks that share what
    they read, each 1 or 2; `group`: how many clusters' rows are worked on together; `ahead`: how many parts of the weights are
    asked for before the last kernel has ended, if they overlap."""

    columns: int
    stages: int
    down: int = 1
    across: int = 1
    group: int = 8
    ahead: int = 2

    @property
    def stage_memory(self) -> int:
        return self.stages * (2 * INNER * (ROWS + 2 * self.columns) + 16)

    @property
    def buffers(self) -> int:
        """How many buffers each of the eight writing warps has for logits."""
        return min(2, (ROOM - self.stage_memory) // (ROWS * STORED * 4))

    def memory(self, head: int) -> int:
        """Of a block: without an output layer, with one (1), and with one that is written (2)."""
        line = 2 * self.columns + (16 if self.columns % 16 == 0 else 0)
        return self.stage_memory + (ROWS * line, 0, ROWS * self.buffers * STORED * 4)[head]


def launch(
    kernel: Any, x: Tensor, weight: Tensor, tile: Tile, across: int, memory: int, overlap: bool, places: Sequence[Tensor], size: int,
    written: Tensor | None = None,
) -> None:  # fmt: skip
    """Run a kernel of `tiles.cu`: `across` tiles in a row of tiles, `places` what it writes to and reads beside the two matrices,
    and `written` a matrix that TMA writes."""
    (rows, width), blocks = x.shape, tile.down * tile.across
    tiles = -(-rows // (ROWS * tile.down)) * -(-across // tile.across)
    maps = [box_map(x.data_ptr(), rows, width, ROWS // tile.across), box_map(weight.data_ptr(), len(weight), width, tile.columns)]
    maps += [] if written is None else [box_map(written.data_ptr(), *written.shape, 16, 4)]
    given = *maps, *(place.data_ptr() for place in places), rows, size, width // INNER, tile.group
    kinds = *(None for _ in maps), *(c_void_p for _ in places), c_int, c_int, c_int, c_int
    grid = min(tiles, clusters(kernel, blocks, THREADS, memory, x.device)) * blocks
    driver.launch(kernel, grid, THREADS, memory, x.device, given, kinds, overlap)


def gate_tiles(x: Tensor, weight: Tensor, kind: str, tile: Tile, overlap: bool = False) -> Tensor:
    """activation(x times the weight's first half) · (x times its second half). `weight` is [2 · size, width]; see `fits`."""
    rows, size = len(x), len(weight) // 2
    out = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    kernel = kernel_of(tile._replace(group=0), 0, kind != "silu", overlap, x.device)
    launch(kernel, x, weight, tile, -(-size // tile.columns), tile.memory(0), overlap, [out], size)
    return out


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel takes a product: plain rows of bfloat16, whole parts, and rows that begin at 16 bytes."""
    kind = x.dtype == weight.dtype == torch.bfloat16 and x.is_contiguous() and weight.is_contiguous()
    return bool(kind and x.shape[1] % INNER == 0 and len(weight) % 16 == 0 and x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0)


@cache
def available(device: torch.device) -> bool:
    """Whether this GPU is a Hopper and the kernel can be compiled for it; a warning if that fails."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0) or find_spec("cuda") is None:
        return False
    try:
        kernel_of(Tile(64, 2), 0, False, False, device)
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        warnings.warn(f"one of the engine's own kernels cannot be compiled, the library's product is used: {error}", stacklevel=3)
        return False
    return True


def name_of(head: int) -> str:
    """Of a kernel, as a profiler shows it."""
    return "head_tiles" if head else "gate_tiles"


def source_of(tile: Tile, head: int, gelu: bool, overlap: bool) -> str:
    """What is compiled: a gated product (`head` 0), an output layer's (1), or one that also writes the logits (2)."""
    values: dict[str, int | str] = {
        "COLUMNS": tile.columns, "STAGES": tile.stages, "DOWN": tile.down, "ACROSS": tile.across, "AHEAD": min(tile.ahead, tile.stages),
        "HEAD": head, "NAME": name_of(head), "PIECE": PIECE, "BUFFERS": tile.buffers, "GELU": int(gelu), "OVERLAP": int(overlap),
    }  # fmt: skip
    return _multiply(tile.columns) + driver.source_of("tiles", **values)


def _multiply(count: int) -> str:
    """sums (+)= 64 rows × 16 of one matrix times 2 · count rows × 16 of another: the instruction names every register."""
    registers = ", ".join(f"%{n}" for n in range(count))
    outputs = ", ".join(f'"+f"(sums[{n}])' for n in range(count))
    return (
        f"__device__ __forceinline__ void multiply(float (&sums)[{count}], unsigned long long x, unsigned long long weight, int add) {{\n"
        f'    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\nwgmma.mma_async.sync.aligned.m64n{2 * count}k16'
        f'.f32.bf16.bf16 {{{registers}}}, %{count}, %{count + 1}, p, 1, 1, 0, 0;\\n}}"\n'
        f'        : {outputs} : "l"(x), "l"(weight), "r"(add));\n}}\n'
    )


@cache
def kernel_of(tile: Tile, head: int, gelu: bool, overlap: bool, device: torch.device) -> Any:
    """The kernel for such tiles, compiled at its first use."""
    return loaded(source_of(tile, head, gelu, overlap), name_of(head), tile.memory(head), device)
