"""The engine's kernel for the two halves of an MLP on Hopper GPUs, next to the library and to the kernel in Triton: which tile is best?

    python benchmarks/gate_tiles.py --out benchmarks/gate_tiles.json                     # 1.5B, 0.5B and 7B shapes, about two minutes
    python benchmarks/gate_tiles.py --shapes 1.5b --rows 128 512

Every candidate must be as near to the result in float32 as the library is. Then it is timed, replayed as a graph, over weights that are too
many for the GPU's cache. `sustained` is the mean over a second of this product and the one that follows it: a GPU that works for that long
lowers its clock, and a kernel that is fast alone may then be slow.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import on_gpu  # noqa: F401 (first)
import torch
from engine_products import COLD, graph_us
from engine_shapes import SHAPES
from results import publish
from torch import Tensor
from torch.nn.functional import linear, silu

from turnwise.engines.native.gate_tiles import gate_tiles
from turnwise.engines.native.hopper_driver import ROOM
from turnwise.engines.native.hopper_tiles import ROWS, Tile
from turnwise.engines.native.kernels import gate_mul
from turnwise.engines.native.product_table import blocks_of
from turnwise.engines.native.products import gated

COUNTS = (64, 128, 256, 512, 1024, 4096, 16384)
FAR = 6e-3  # of a right result from the one in float32, relative


def candidates(rows: int, size: int, processors: int) -> Iterator[Tile]:
    """The tiles that keep most multiprocessors busy, and a few changes of each."""
    many = rows >= 4096
    for down, across in ((1, 2),) if rows <= ROWS else ((2, 1), (2, 2)) if many else ((2, 1), (1, 2)):

        def cost(columns: int, down: int = down, across: int = across) -> float:
            tiles = -(-rows // (ROWS * down)) * -(-size // (columns * across))
            return -(-tiles // (processors // 2)) * (columns + 16)

        for columns in (128, 112) if many else sorted(range(32, 129, 8), key=cost)[:3]:
            most = max(n for n in range(2, 9) if Tile(columns, n).memory(0) <= ROOM)
            yield from (Tile(columns, most, down, across, group) for group in ((8, 16, 32) if many else (8,)))


def error(found: Tensor, x: Tensor, weight: Tensor) -> float:
    worst = torch.zeros(2, device=x.device)
    for rows, here in zip(x.split(2048), found.split(2048), strict=True):
        gate, up = linear(rows.float(), weight.float()).chunk(2, -1)
        exact = silu(gate) * up
        worst += torch.stack([(here.float() - exact).square().sum(), exact.square().sum()])
    return float((worst[0] / worst[1]).sqrt().nan_to_num(9.0))


def sustained(way: Callable[[Tensor], Tensor], after: Tensor, seconds: float) -> float:
    """Microseconds of the product and the one after it, over so many seconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    calls, stop = 0, time.perf_counter() + seconds
    begin.record()
    while time.perf_counter() < stop:
        for _ in range(20):
            torch.mm(way(after), after.t())
        calls += 20
        torch.cuda.current_stream().synchronize()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / calls


def measure(shape: str, counts: list[int], seconds: float) -> dict[str, Any]:
    width, size = SHAPES[shape]["hidden_size"], SHAPES[shape]["intermediate_size"]
    copies = max(2, -(-COLD // (4 * width * size)))
    weights = [torch.randn(2 * size, width, device="cuda", dtype=torch.bfloat16) * width**-0.5 for _ in range(copies)]
    after = torch.randn(width, size, device="cuda", dtype=torch.bfloat16) * size**-0.5
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    found: dict[str, Any] = {}
    for rows in counts:
        x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        calls = len(weights) if rows <= 1024 else 2
        blocks = blocks_of("gate", rows, width, 2 * size)
        ways: dict[Any, Callable[[Tensor], Tensor]] = {"library": lambda w, x=x: gate_mul(linear(x, w), "silu", True)}
        if blocks is not None:
            ways["triton"] = lambda w, x=x, blocks=blocks: gated(x, w, None, "silu", blocks, True)
        for tile in candidates(rows, size, processors):
            ways[tile] = lambda w, x=x, tile=tile: gate_tiles(x, w, "silu", tile, True)
        times: dict[Any, float] = {}
        for name, way in ways.items():
            far = error(way(weights[0]), x, weights[0])
            if far > FAR:
                raise SystemExit(f"{shape}, {rows} rows, {name}: the result is off by {far:.1e}")
            times[name] = graph_us([partial(way, weights[n % copies]) for n in range(calls)])
        tiles = sorted((name for name in times if isinstance(name, Tile)), key=times.__getitem__)
        here = {"library": times["library"], "triton": times.get("triton"), "tiles": [[times[tile], tile] for tile in tiles[:4]]}
        if rows >= 4096 and seconds:
            names = ["library", *(["triton"] if blocks is not None else []), *tiles[:3]]
            here["sustained"] = {str(n): sustained(lambda _, w=ways[n]: w(weights[0]), after, seconds) for n in [*names, *names[::-1]]}
        print(shape, rows, here, flush=True)
        found[str(rows)] = here
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["1.5b", "0.5b", "7b"], choices=sorted(SHAPES))
    parser.add_argument("--rows", nargs="+", type=int, default=list(COUNTS))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each way in the sustained measurement; 0: none")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    result["us"] = {shape: measure(shape, chosen.rows, chosen.seconds) for shape in chosen.shapes}
    publish(result, chosen.out)


if __name__ == "__main__":
    main()
