"""The engine's own matrix products and its attention of prompts next to what they replace: which blocks are best for which shape?

    python benchmarks/engine_products.py --out benchmarks/engine_products.json              # 1.5B, 0.5B, 7B shapes, about four minutes
    python benchmarks/engine_products.py --shapes 1.5b --rows 128 512 --seconds 100         # less

Every candidate is checked on new random numbers against a product in float32 and must be as near to it as the library is; then it is timed,
replayed as a graph, over weights that are too many for the GPU's cache. `out` and `down` are timed with the norm that follows, `gate` with
the activation. The kernels are compiled by several processes first. The most important shapes come first, and when `--seconds` are over the
rest is left out. The last lines are the tables for `product_table.py`; `engine_steps.py --table FILE` uses what is in FILE.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import on_gpu  # noqa: F401 (first)
import torch
from engine_shapes import SHAPES
from results import publish
from torch.nn.functional import linear, silu

from turnwise.engines.native import paged_attention, product_table, prompt_attention
from turnwise.engines.native.kernels import add_norm, gate_mul
from turnwise.engines.native.product_table import Blocks
from turnwise.engines.native.products import gated, product
from turnwise.engines.native.prompt_attention import Way

ROWS = (128, 512, 64, 256, 32, 16)
MANY = (16384, 4096, 1024)
COLD = 192 << 20  # bytes of weights that are used in turn: several times the GPU's cache
ROOM = 220 << 10  # bytes of a multiprocessor's memory that one program may take
WAYS = [
    Way(1, 8, 2), Way(1, 8, 3), Way(1, 8, 2, registers=128), Way(2, 8, 2), Way(1, 8, 2, bulk=False), Way(1, 4, 2), Way(1, 4, 3),
    Way(2, 4, 2),
]  # fmt: skip


def sizes_of(shape: str) -> dict[str, tuple[int, int]]:
    """Inner and outer size of a layer's products."""
    s = SHAPES[shape]
    hidden, middle = s["hidden_size"], s["intermediate_size"]
    head = hidden // s["num_attention_heads"]
    return {
        "gate": (hidden, 2 * middle), "down": (middle, hidden), "qkv": (hidden, hidden + 2 * s["num_key_value_heads"] * head),
        "out": (hidden, hidden),
    }  # fmt: skip


def room_of(kind: str, b: Blocks) -> int:
    """The bytes of a multiprocessor's memory that a program takes."""
    return 2 * b.stages * b.part * (b.rows + b.columns * (2 if kind == "gate" else 1)) + (2 * b.rows * b.columns if b.stay else 0)


def first_candidates(kind: str, rows: int, width: int, size: int) -> Iterator[Blocks]:
    """Blocks of every size that keep most multiprocessors busy."""
    outer, halves, splits = (size // 2, 2, False) if kind == "gate" else (size, 1, True)
    height = max(16, min(128, 1 << (rows - 1).bit_length()))
    part = 64 if height >= 64 else 128
    narrow = (16,) if kind == "qkv" and height <= 64 else ()
    wide = (256,) if kind != "gate" else ()
    for high, columns in [(height, c) for c in (*narrow, 32, 64, 128, *wide)] + [(64, c) for c in (32, 64, 128) if height == 128]:
        tiles = -(-outer // columns) * -(-rows // high)
        for split in {max(1, min(16, width // part // 3, programs // tiles)) for programs in (132, 264)} if splits else {1}:
            together = min(3, -(-tiles * split // 132))  # programs on a multiprocessor, if its memory is enough
            stages = min(6, ROOM // together // (2 * part * (high + columns * halves)))
            warps = 8 if high * columns * halves > 128 * 128 else 4
            if width % part == 0 and 40 <= tiles * split <= 1200 and stages >= 2:
                yield Blocks(high, columns, part, split, warps, stages, bulk=True)


def variations(kind: str, blocks: Blocks, width: int) -> Iterator[Blocks]:
    """The same blocks, with one thing changed."""
    few = max(2, blocks.stages - 1)
    changed = [{"stages": few}, {"stages": blocks.stages + 1}, {"bulk": False}, {"part": 192 - blocks.part, "stages": few}]
    found = [blocks._replace(**change) for change in changed]
    return (b for b in found if width % b.part == 0 and room_of(kind, b) <= ROOM)


def many_candidates(width: int) -> list[Blocks]:
    """For prompts: large blocks, with programs that stay and without."""
    found = [
        Blocks(high, columns, 64, 1, warps, stages, True, 0, group, stay)
        for high, columns, warps in ((128, 128, 8), (128, 64, 4), (128, 64, 8), (256, 64, 8))
        for stages in (3, 4)
        for stay in (False, True)
        for group in (8, 16)
    ]
    return [b for b in found if width % b.part == 0 and room_of("gate", b) <= ROOM]


class Case:
    """One product of one layer with several weights, and what follows it."""

    def __init__(self, kind: str, rows: int, width: int, size: int):
        self.kind, self.shape = kind, (rows, width, size)
        copies = max(2, min(48, -(-COLD // (2 * width * size))))
        self.weights = [torch.randn(size, width, device="cuda", dtype=torch.bfloat16) * width**-0.5 for _ in range(copies)]
        self.x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        self.bias = torch.randn(size, device="cuda", dtype=torch.bfloat16) if kind == "qkv" else None
        self.residual = torch.randn(rows, size, device="cuda", dtype=torch.bfloat16)
        self.factor = torch.ones(size, device="cuda", dtype=torch.bfloat16)

    def run(self, blocks: Blocks | None, number: int = 0, overlap: bool = False) -> torch.Tensor:
        weight = self.weights[number]
        if self.kind == "gate":
            return (
                gate_mul(linear(self.x, weight), "silu", overlap)
                if blocks is None
                else gated(self.x, weight, None, "silu", blocks, overlap)
            )
        found = linear(self.x, weight, self.bias) if blocks is None else product(self.x, weight, self.bias, blocks, overlap)
        return found if self.kind == "qkv" else add_norm(self.residual, found, self.factor, 1e-6, overlap)

    def error(self, blocks: Blocks | None) -> float:
        """The distance of what it gives from the same in float32, with new numbers."""
        self.x.normal_()
        self.residual.normal_()
        exact = linear(self.x.float(), self.weights[0].float(), None if self.bias is None else self.bias.float())
        if self.kind == "gate":
            gate, up = exact.chunk(2, -1)
            exact = silu(gate) * up
        elif self.kind != "qkv":
            exact = self.residual.float() + exact
            exact = exact * (exact.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        found = self.run(blocks).float()
        found = found.sum(0) if found.dim() == 3 else found
        return float(((found - exact).norm() / exact.norm()).nan_to_num(9.0))

    def us(self, blocks: Blocks | None, calls: int = 8) -> float:
        """Microseconds of one call; infinite if it is wrong or does not run."""
        try:
            if not self.error(blocks) <= 6e-3:
                print("wrong:", self.kind, self.shape, blocks, self.error(blocks), flush=True)
                return float("inf")
            calls = max(calls, len(self.weights)) if self.shape[0] <= 512 else 2
            return graph_us([lambda n=n: self.run(blocks, n % len(self.weights)) for n in range(calls)])  # type: ignore[misc]
        except Exception as error:
            print("skipped:", blocks, str(error).splitlines()[0][:100], flush=True)
            return float("inf")


def recorded(work: Sequence[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    """All pieces of work as one graph."""
    work[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in work:
            one()
    return graph


def graph_us(work: list[Callable[[], Any]], rounds: int = 9) -> float:
    """Microseconds per piece of work, recorded and replayed."""
    graph, found = recorded(work), []
    for _ in range(rounds + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3 / len(work))
    return statistics.median(found[2:])


def search(case: Case) -> dict[str, Any]:
    """The best blocks of one case next to the library: first sizes, then details of the two best."""
    (rows, width, size), library = case.shape, case.us(None)
    if rows > 512:
        times = {blocks: case.us(blocks) for blocks in many_candidates(width)}
    else:
        times = {blocks: case.us(blocks) for blocks in first_candidates(case.kind, rows, width, size)}
        if case.kind == "gate" and rows >= 256:
            times |= {blocks: case.us(blocks) for blocks in many_candidates(width) if blocks.stay and blocks.group == 8}
        for best in sorted(times, key=times.__getitem__)[:2]:
            for blocks in variations(case.kind, best, width):
                times.setdefault(blocks, case.us(blocks) if blocks not in times else 0.0)
    ranked = sorted(times.items(), key=lambda one: one[1])[:3]
    return {"library": library, "own": [[us, list(blocks)] for blocks, us in ranked], "tried": len(times)}


# Compiling.


def compile_some(jobs: list[tuple[str, Blocks]]) -> int:
    """Compile kernels by calling them on small numbers; what they leave in Triton's cache on disk is found by other processes."""
    done = 0
    for kind, blocks in jobs:
        x = torch.zeros(max(16, min(blocks.rows, 512)), 768, device="cuda", dtype=torch.bfloat16)
        weight = torch.zeros(512, 768, device="cuda", dtype=torch.bfloat16)
        try:
            if kind == "gate":
                gated(x, weight, None, "silu", blocks)
            else:
                product(x, weight, weight[:, 0].contiguous() if kind == "qkv" else None, blocks)
            done += 1
        except Exception as error:
            print("skipped:", kind, blocks, str(error).splitlines()[0][:100], flush=True)
    torch.cuda.synchronize()
    return done


def jobs_of(shapes: list[str], rows: list[int]) -> list[tuple[str, Blocks]]:
    """All kernels that may be tried. The number of parts is no part of a kernel, only whether there are several."""
    found: dict[tuple[str, Blocks], None] = {}
    for shape in shapes:
        for kind, (width, size) in sizes_of(shape).items():
            for count in rows:
                for blocks in first_candidates(kind, count, width, size):
                    for one in (blocks, *variations(kind, blocks, width)):
                        found["gate" if kind == "gate" else "qkv" if kind == "qkv" else "out", one._replace(split=min(one.split, 2))] = None
            if kind == "gate":
                found.update(dict.fromkeys(("gate", blocks) for blocks in many_candidates(width)))
    return list(found)


def compile_all(jobs: list[tuple[str, Blocks]], workers: int) -> None:
    start = time.perf_counter()
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            done = sum(pool.map(compile_some, [jobs[n::workers] for n in range(workers)]))
        print(f"compiled {done} of {len(jobs)} kernels in {time.perf_counter() - start:.0f} s", flush=True)
    except Exception as error:
        print("compiled as they come:", error, flush=True)


# Products.


def products(shapes: list[str], rows: list[int], seconds: float) -> dict[str, Any]:
    """Every product of every shape: what the library takes and the best blocks, in microseconds."""
    end, found = time.perf_counter() + seconds, dict[str, Any]()
    plan = [(shape, kind, count) for count in rows for shape in shapes for kind in sizes_of(shape)]
    plan = [(shapes[0], "gate", count) for count in MANY] + plan + [(shape, "gate", count) for shape in shapes[1:] for count in MANY]
    for shape, kind, count in sorted(plan, key=lambda one: one[0] != shapes[0]):
        if time.perf_counter() > end:
            print("out of time before", shape, kind, count, flush=True)
            break
        case = Case(kind, count, *sizes_of(shape)[kind])
        name = f"{kind} {case.shape[1]}×{case.shape[2]}"
        found.setdefault(name, {})[count] = one = search(case)
        best = one["own"][0] if one["own"] else [float("inf"), []]
        print(f"{shape} {name}, {count} rows: library {one['library']:.2f} us, own {best[0]:.2f} {best[1]}", flush=True)
        del case
        torch.cuda.empty_cache()
    return found


def table_of(found: dict[str, Any], gain: float = 0.985) -> dict[tuple[str, int, int], product_table.Lines]:
    """The lines of `product_table.MEASURED`: blocks where they beat the library by more than the noise."""
    table: dict[tuple[str, int, int], product_table.Lines] = {}
    for name, by_rows in found.items():
        kind, sizes = name.split()
        width, size = map(int, sizes.split("×"))
        lines = []
        for rows in sorted(map(int, by_rows)):
            one = by_rows[rows] if rows in by_rows else by_rows[str(rows)]
            us, best = (one["own"][0][0], Blocks(*one["own"][0][1])) if one["own"] else (float("inf"), Blocks(0, 0, 0))
            bound = gain - 0.1 if kind == "qkv" and best.split > 1 else gain  # attention adds up the parts, which is not in its time
            lines.append((rows, best if us < bound * one["library"] else None))
        if lines and lines[-1][0] == max(MANY):
            lines[-1] = (10**6, lines[-1][1])
        if any(blocks for _, blocks in lines):
            table[kind, width, size] = tuple(lines)
    return table


def chain(shape: str, count: int) -> dict[str, float]:
    """Microseconds of a whole layer without its attention, in every way, over many layers' weights."""
    sizes = sizes_of(shape)
    cases = {kind: Case(kind, count, *sizes[kind]) for kind in ("qkv", "out", "gate", "down")}

    def layer(n: int, own: bool, overlap: bool, ahead: int) -> None:
        for kind, case in cases.items():
            blocks = product_table.blocks_of(kind, count, *sizes[kind]) if own else None
            case.run(blocks and blocks._replace(ahead=ahead), n % len(case.weights), overlap)

    def timed(*way: Any) -> float:
        try:
            return graph_us([lambda n=n: layer(n, *way) for n in range(12)])  # type: ignore[misc]
        except Exception as error:
            print("skipped:", way, str(error).splitlines()[0][:100], flush=True)
            return float("inf")

    found = {"library": timed(False, False, 0), "library, overlap": timed(False, True, 0), "own": timed(True, False, 0)}
    return found | {f"own, overlap, {ahead} ahead": timed(True, True, ahead) for ahead in (0, 1, 2, 4, 8)}


# Attention of prompts.


class Prompts:
    """Prompts of `new` tokens after `old` ones in pages of random keys and values."""

    def __init__(self, shape: str, count: int, old: int, new: int, block: int):
        s = SHAPES[shape]
        heads, kv_heads, size = s["num_attention_heads"], s["num_key_value_heads"], s["hidden_size"] // s["num_attention_heads"]
        self.shape = SimpleNamespace(heads=heads, kv_heads=kv_heads, head_dim=size, scale=size**-0.5, group=heads // kv_heads)
        self.layer, self.block, self.old, self.new = SimpleNamespace(window=0, shift=None), block, old, new
        width = -(-(old + new) // 64)
        self.table = torch.randperm(count * width, device="cuda").view(count, width).int()
        self.cache = torch.randn(2, count * width, kv_heads, 64, size, device="cuda", dtype=torch.bfloat16)
        self.qkv = torch.randn(count * new, (heads + 2 * kv_heads) * size, device="cuda", dtype=torch.bfloat16)
        blocks = [[n, n * new + done, old + done, min(block, new - done)] for n in range(count) for done in range(0, new, block)]
        self.blocks = torch.tensor(blocks, device="cuda").int()
        self.flop = 4 * count * heads * size * (new * old + new * (new + 1) / 2)

    def attend(self, way: Way | None) -> torch.Tensor:
        given = self.qkv, self.cache, self.layer, self.table, self.blocks, self.block, self.shape
        return paged_attention.attend_prompts(*given) if way is None else prompt_attention.attend_prompts(*given, way)

    def exact(self, slot: int) -> torch.Tensor:
        """One prompt's attention in float32."""
        s, length = self.shape, self.old + self.new
        keys, values = (x[self.table[slot].long()].transpose(0, 1).flatten(1, 2)[:, :length].float() for x in self.cache)
        q = self.qkv[slot * self.new : (slot + 1) * self.new, : s.heads * s.head_dim].float().view(self.new, s.heads, -1).transpose(0, 1)
        score = q @ keys.repeat_interleave(s.group, 0).transpose(1, 2) * s.scale
        seen = torch.arange(length, device="cuda") <= torch.arange(self.old, length, device="cuda")[:, None]
        weight = score.masked_fill(~seen, -torch.inf).softmax(-1)
        return (weight @ values.repeat_interleave(s.group, 0)).transpose(0, 1).reshape(self.new, -1)

    def us(self, way: Way | None) -> float:
        try:
            exact = self.exact(1)
            found = self.attend(way)[self.new : 2 * self.new].float()
            if not (found - exact).norm() <= 1e-2 * exact.norm():
                print("wrong:", way, ((found - exact).norm() / exact.norm()).item(), flush=True)
                return float("inf")
            return graph_us([lambda: self.attend(way)] * 4)
        except Exception as error:
            print("skipped:", way, str(error).splitlines()[0][:100], flush=True)
            return float("inf")


def prompts(shapes: list[str]) -> dict[str, Any]:
    """Attention of long prompts and of short continuations, in microseconds and TFLOP/s, the fastest first. The engine uses the best from
    then on."""
    found: dict[str, Any] = {}
    best: dict[Way, float] = {}
    for shape in shapes:
        for count, old, new, sizes in ((16, 0, 1024, (128, 64)), (4, 0, 4096, (128, 64)), (64, 1024, 32, (64,))):
            times = {}
            for block in sizes:
                case = Prompts(shape, count, old, new, block)
                own = {way: case.us(way) for way in WAYS}
                if block == 64:
                    best = {way: best.get(way, 0.0) + us for way, us in own.items()}
                times[f"blocks of {block}, as before"] = case.us(None)
                times |= {f"blocks of {block}, {tuple(way)}": us for way, us in own.items()}
            ranked = sorted(times.items(), key=lambda one: one[1])
            name = f"{shape}, {count} × {new} after {old}"
            found[name] = {way: [us, case.flop / us / 1e6] for way, us in ranked if us < float("inf")}
            before = times[f"blocks of {sizes[0]}, as before"]
            print(
                f"{name}: before {before:.0f} us; {ranked[0][0]} {ranked[0][1]:.0f} us, {case.flop / ranked[0][1] / 1e6:.0f} TFLOP/s",
                flush=True,
            )
            del case
            torch.cuda.empty_cache()
    prompt_attention.BEST = min(best, key=best.__getitem__)
    print(f"BEST = {prompt_attention.BEST}", flush=True)
    return found


def as_source(table: dict[tuple[str, int, int], product_table.Lines]) -> str:
    """The table as lines of `product_table.py`."""
    lines = ["MEASURED: dict[tuple[str, int, int], Lines] = {"]
    for key, rows in table.items():
        lines.append(f'    ("{key[0]}", {key[1]}, {key[2]}): (')
        lines += [f"        ({most}, {None if b is None else 'Blocks' + repr(tuple(b))})," for most, b in rows]
        lines.append("    ),")
    return "\n".join([*lines, "}  # fmt: skip"])


def measure(shapes: list[str], rows: list[int], seconds: float, workers: int) -> dict[str, Any]:
    """Everything about products. The engine uses the table from then on."""
    compile_all(jobs_of(shapes, rows), workers)
    found = products(shapes, rows, seconds)
    table = table_of(found)
    product_table.MEASURED.update(table)
    chains = {f"{shapes[0]}, {count} rows": chain(shapes[0], count) for count in rows[:2]}
    print("\n".join(f"{name}: {times}" for name, times in chains.items()), flush=True)
    overlaps = {name: us for name, us in next(iter(chains.values())).items() if "ahead" in name}
    ahead = int(min(overlaps, key=overlaps.__getitem__).split(",")[-1].split()[0])
    product_table.MEASURED.update(with_ahead(table, ahead))
    return {"products": found, "chain": chains, "ahead": ahead, "table": as_source(with_ahead(table, ahead))}


def with_ahead(table: dict[tuple[str, int, int], product_table.Lines], ahead: int) -> dict[tuple[str, int, int], product_table.Lines]:
    return {key: tuple((most, b and b._replace(ahead=ahead)) for most, b in rows) for key, rows in table.items()}


def use_table(found: dict[str, Any]) -> None:
    """Let the engine use what a run has found."""
    prompt_attention.BEST = Way(*found["way"])
    product_table.MEASURED.update(with_ahead(table_of(found["products"]), int(found["ahead"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["1.5b", "0.5b", "7b"])
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=110, help="for the products; compiling and attention come on top")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    result["prompts"] = prompts(options.shapes[:1])
    result["way"] = list(prompt_attention.BEST)
    result |= measure(options.shapes, options.rows, options.seconds, options.workers)
    publish(result, options.out)
    print(result["table"])


if __name__ == "__main__":
    main()
