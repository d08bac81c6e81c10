"""The engine's kernel for weights in 4 bits (switch `packed`), next to bitsandbytes and to weights in bfloat16: what is faster, and when?

    python benchmarks/packed_products.py --out benchmarks/packed_products.json      # the products of a 7B layer, 1 to 64 rows
    python benchmarks/packed_products.py --cases down --rows 8 16 --search          # other blocks, too

Ways: `library` is bitsandbytes' own product, as the engine uses it without the switch. `unpacked` writes the weights as bfloat16 and
multiplies by those. `bfloat16` multiplies by weights that are not packed at all. `packed` is the kernel. Every result must be as near to
the one in float32 as a rounded product is. Then a way is timed, recorded as a graph and replayed, over weights that are too many for the
GPU's cache. `layer` adds up the products of one layer. Microseconds. Needs a GPU and bitsandbytes (extra `4bit`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import on_gpu  # noqa: F401 (first)
import torch
from engine_products import COLD, graph_us
from engine_shapes import SHAPES
from results import need_gpu, publish
from torch import Tensor
from torch.nn.functional import linear

from turnwise.engines.fourbit import dense, library, times
from turnwise.engines.native.packed_product import multiply, packed_product
from turnwise.engines.native.product_table import Blocks, packed_blocks
from turnwise.util.errors import MissingExtra

COUNTS = (1, 2, 4, 8, 16, 32, 64)
FAR = 6e-3  # of a right result from the one in float32, relative
Ways = dict[str, Callable[[Any], Tensor]]


def cases(shape: str) -> dict[str, tuple[int, list[int]]]:
    """The products of a layer: the inner size, and the outer sizes of the weights that read the same rows."""
    hidden, inner, heads = (SHAPES[shape][name] for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
    kv = SHAPES[shape]["num_key_value_heads"] * hidden // heads
    return {"qkv": (hidden, [hidden, kv, kv]), "out": (hidden, [hidden]), "gate_up": (hidden, [inner, inner]), "down": (inner, [hidden])}


def pack(size: int, width: int) -> Any:
    """A random weight, packed as the learner does."""
    plain = torch.randn(size, width, device="cuda", dtype=torch.bfloat16) * width**-0.5
    return library().nn.Params4bit(plain, requires_grad=False, quant_type="nf4").to("cuda")


def candidates(chosen: Blocks, width: int) -> Iterator[Blocks]:
    """Other blocks for so many rows: tiles, steps, stages, and parts of the inner size."""
    for columns, warps in ((64, 2), (64, 4), (128, 4), (128, 8)):
        for part in (128, 256):
            for stages in (3, 5):
                for split in sorted({1, 2, 4, 8, chosen.split, 2 * chosen.split}):
                    if width % part == 0 and split <= width // part:
                        yield Blocks(chosen.rows, columns, part, split, warps, stages)


def far(found: Tensor, exact: Tensor) -> float:
    return float(((found.float() - exact).norm() / exact.norm()).nan_to_num(9.0))


def measure(width: int, sizes: list[int], counts: list[int], search: bool) -> dict[str, Any]:
    copies = max(2, -(-COLD // (sum(sizes) * width // 2)))
    packed = [[pack(size, width) for size in sizes] for _ in range(copies)]
    plain = [torch.cat([dense(weight) for weight in weights]) for weights in packed[:2]]
    device = torch.device("cuda", torch.cuda.current_device())
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    generation = torch.cuda.get_device_capability(device)[0]
    found: dict[str, Any] = {}
    for rows in counts:
        x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        exact = linear(x.float(), plain[0].float())
        ways: Ways = {
            "library": lambda weights, x=x: torch.cat([times(x, weight) for weight in weights], -1),
            "unpacked": lambda weights, x=x: torch.cat([linear(x, dense(weight)) for weight in weights], -1),
            "packed": lambda weights, x=x: packed_product(x, weights, None),
        }
        blocks = packed_blocks(rows, width, max(sizes), processors, generation)
        if blocks is None:
            del ways["packed"]
        here: dict[str, Any] = {"blocks": blocks}
        for name, way in ways.items():
            if far(way(packed[0]), exact) > FAR:
                raise SystemExit(f"{sizes} of {width}, {rows} rows, {name}: the result is off by {far(way(packed[0]), exact):.1e}")
            here[name] = graph_us([partial(way, weights) for weights in packed])
        here["bfloat16"] = graph_us([partial(linear, x, plain[n % len(plain)]) for n in range(copies)])
        if search and blocks is not None:
            here["search"] = _search(x, packed, exact, blocks)[:5]
        print(sizes, width, rows, here, flush=True, file=sys.stderr)
        found[str(rows)] = here
    return found


def _search(x: Tensor, packed: list[Any], exact: Tensor, chosen: Blocks) -> list[tuple[float, Blocks]]:
    """Microseconds and blocks, the fastest first. Blocks that do not fit into the GPU are left out."""
    done: list[tuple[float, Blocks]] = []
    for blocks in candidates(chosen, x.shape[1]):
        try:
            if far(multiply(x, packed[0], None, blocks), exact) <= FAR:
                done.append((graph_us([partial(multiply, x, weights, None, blocks) for weights in packed]), blocks))
        except Exception as error:  # whatever Triton raises for blocks that take too much
            print(blocks, str(error).strip().partition("\n")[0][:120], flush=True, file=sys.stderr)
    return sorted(done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="7b", choices=sorted(SHAPES))
    parser.add_argument("--cases", nargs="+", default=list(cases("7b")), choices=list(cases("7b")))
    parser.add_argument("--rows", nargs="+", type=int, default=list(COUNTS))
    parser.add_argument("--search", action="store_true", help="try other blocks for the kernel")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    need_gpu()
    try:
        version = library().__version__
    except MissingExtra as error:
        sys.exit(str(error))
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "bitsandbytes": version}
    us = {name: measure(*cases(chosen.shape)[name], chosen.rows, chosen.search) for name in chosen.cases}
    result |= {"shape": chosen.shape, "us": us}
    if len(us) == len(cases(chosen.shape)):
        names = ("library", "unpacked", "packed", "bfloat16")
        result["layer"] = {
            str(rows): {n: round(sum(us[case][str(rows)][n] for case in us), 2) for n in names if n in us["out"][str(rows)]}
            for rows in chosen.rows
        }
    publish(result, chosen.out)


if __name__ == "__main__":
    main()
