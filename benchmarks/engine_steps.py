"""Each way in which the native engine can work on a GPU (`Switches`): is it right, and what does it save? Before and after in one run.

    python benchmarks/engine_steps.py --out benchmarks/engine_steps.json --timeline docs/images/engine-timeline.svg
    python benchmarks/engine_steps.py --parts check draw               # some parts alone
    python benchmarks/engine_steps.py --shape 0.5b --parts check games timeline
    python benchmarks/engine_steps.py --parts products prompt check decode whole --ways now own "own, overlap"

`check` compares every way with the plain one and with the model's own forward; nothing is timed if it fails. `draw` times the output layer
with the draw by number of rows and says what to put into `switches.MEASURED`. `cut` tries block sizes for the draw with top-p, `attention`
numbers of programs, warps and loads ahead for decode attention, `shared` rows that share a prefix and caches in 8 bits (engine_shared.py).
`products` and `prompt` try blocks for the engine's own products and ways for its attention of prompts (engine_products.py); the parts after
them use what was best, as they use what `--table` has. `decode`, `whole` and `games` run the engine: single steps, 128 × (1,024 + 128)
tokens, and 128 dialogues of short turns that are answered at once, as games do. `timeline` draws where GPU and host are busy in the latter.

Models have random weights in bf16 (engine_shapes.py). Every figure is a median or a minimum of several runs after one that is not counted.
The last lines are a table.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import engine_products
import engine_shared
import on_gpu  # noqa: F401 (first)
import torch
from engine import Bench, as_float, seconds
from engine_shapes import SHAPES, WORDS
from engine_timeline import Timeline, picture
from results import publish

from turnwise.engines.base import Request, Response, Sampling
from turnwise.engines.native import NativeEngine, draw_kernel, head_kernel, head_tiles, hopper_tiles, nucleus_kernel, paged_attention
from turnwise.engines.native.head_kernel import Blocks, Drawing
from turnwise.engines.native.switches import PLAIN

PARTS = ("products", "prompt", "check", "draw", "cut", "attention", "shared", "decode", "whole", "games", "timeline")
BEFORE = asdict(PLAIN)
WAYS: dict[str, dict[str, Any]] = {
    "before": BEFORE,
    "record": BEFORE | {"record": True},
    "tiles": BEFORE | {"draw": "tiles"},
    "fused": BEFORE | {"draw": "fused"},
    "merge": BEFORE | {"merge": True},
    "all, tiles": BEFORE | {"record": True, "draw": "tiles", "merge": True},
    "all, fused": BEFORE | {"record": True, "draw": "fused", "merge": True},
    "now": {},
    "products": BEFORE | {"products": True},
    "gate": BEFORE | {"gate": True},
    "overlap": BEFORE | {"overlap": True},
    "prompts": BEFORE | {"prompts": True},
    "own": BEFORE | {"products": True, "gate": True, "prompts": True},
    "own, overlap": BEFORE | {"products": True, "gate": True, "prompts": True, "overlap": True},
    "cascade": {"cascade": True},
    "balance": {"balance": True},
    "no gate tiles": {"gate_tiles": False},
    "by rows": {"nucleus": False},
    "no product": {"draw": "tiles"},
}
BLOCKS = [
    Blocks(16, 128, 64, 4, 4), Blocks(32, 128, 64, 4, 4), Blocks(64, 128, 64, 4, 4), Blocks(64, 256, 64, 4, 3), Blocks(128, 64, 64, 4, 4),
    Blocks(128, 128, 64, 4, 3), Blocks(128, 128, 64, 8, 4), Blocks(128, 256, 64, 8, 3), Blocks(128, 256, 64, 8, 4),
]  # fmt: skip


def median_us(work: Callable[[], Any], rounds: int = 20) -> float:
    """Microseconds of work on the GPU, by events, after three runs that are not counted."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    found = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3)
    return statistics.median(found)


def graph_us(work: Callable[[], Any], calls: int = 10) -> float:
    """Microseconds of one call on the GPU without its launch: several are recorded and replayed."""
    try:
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                work()
        return median_us(graph.replay) / calls
    except Exception as error:
        print("skipped:", str(error).splitlines()[0][:120], flush=True)
        return float("inf")


class Attention:
    """One layer's cache with random keys and values, and queries for one token per lane."""

    def __init__(self, weights: Any, lanes: int, context: int, ragged: bool):
        self.shape, self.layer, page = weights.shape, weights.layers[0], 64
        rng = random.Random(0)
        lengths = [int(context * rng.uniform(0.25, 1.75)) if ragged else context for _ in range(lanes)]
        width = -(-max(lengths) // page)
        cos, sin = zip(*weights.rotations(max(lengths) + 1), strict=True)
        pages = torch.randperm(lanes * width, device="cuda").view(lanes, width).int()
        self.tables = SimpleNamespace(cos=cos, sin=sin, pages=pages)
        shape = 2, lanes * width, self.shape.kv_heads, page, self.shape.head_dim
        self.cache = torch.randn(shape, device="cuda", dtype=weights.dtype)
        size = (self.shape.heads + 2 * self.shape.kv_heads) * self.shape.head_dim
        self.qkv = torch.randn(lanes, size, device="cuda", dtype=weights.dtype)
        self.slots, self.positions = torch.arange(lanes, device="cuda").int(), torch.tensor(lengths, device="cuda").int() - 1
        self.arrivals = torch.zeros(lanes * self.shape.kv_heads, dtype=torch.int32, device="cuda")
        self.bytes = sum(lengths) * 2 * self.shape.kv_heads * self.shape.head_dim * weights.dtype.itemsize

    def attend(self, merge: bool) -> torch.Tensor:
        arrivals = self.arrivals if merge else None
        return paged_attention.attend_singles(
            self.qkv, self.cache, self.layer, self.tables, self.slots, self.positions, self.shape, arrivals
        )


class Draws:
    """An output layer with random rows, and every way to draw from it."""

    def __init__(self, rows: int, width: int, top_p: float = 1.0, words: int = WORDS, kind: torch.dtype = torch.bfloat16):
        self.hidden = torch.randn(rows, width, device="cuda", dtype=kind)
        self.head = torch.randn(words, width, device="cuda", dtype=kind) * 0.05
        floats = torch.tensor([[1.0, top_p, 0.0]] * (rows + 1), device="cuda")
        integers = torch.tensor([[n % 7 == 3, words, n * 7919 - 3] for n in range(rows + 1)], device="cuda")
        slots, places = torch.arange(rows, device="cuda").int(), torch.arange(rows, device="cuda").int() % 9
        tokens, last = (torch.full((rows + 1,), -1, device="cuda") for _ in range(2))
        self.to = Drawing(slots, places, floats, integers, last, tokens[:rows], torch.full((rows,), 9.0, device="cuda"))

    def logits(self) -> torch.Tensor:
        if self.hidden.dtype == torch.float32:
            return self.hidden @ self.head.t()
        return torch.mm(self.hidden, self.head.t(), out_dtype=torch.float32)

    def rows(self) -> None:
        draw_kernel.draw_tokens(self.logits(), *self.to)

    def tiles(self) -> None:
        head_kernel.draw_tiles(self.logits(), self.to)

    def fused(self, blocks: Blocks | None = None) -> None:
        head_kernel.draw_fused(self.hidden, self.head, None, self.to, blocks)

    def product(self) -> None:
        head_tiles.draw_product(self.hidden, self.head, self.to, overlap=True)

    def result(self, work: Callable[[], None]) -> tuple[torch.Tensor, torch.Tensor]:
        self.to.tokens.fill_(-1)
        self.to.logprobs.fill_(9.0)
        work()
        return self.to.tokens.clone(), self.to.logprobs.clone()


class Steps(Bench):
    """A model, and engines on it that work in one way after another."""

    def __init__(self, shape: str, ways: Sequence[str] = tuple(WAYS)):
        super().__init__(shape, 512, 1.0)
        self.shape, self.ways = shape, ways

    def use(self, way: dict[str, Any], slots: int = 512, longest: int = 1536, **settings: Any) -> NativeEngine:
        self.engine.close()
        torch.cuda.empty_cache()
        self.engine = NativeEngine(self.model, max_batch=slots, max_length=longest, cache_memory=0.5, switches=way, **settings)
        return self.engine

    # Is it right?

    def check(self) -> dict[str, Any]:
        found = {f"draw, {kind}": self._check_draws(kind) for kind in (torch.float32, torch.bfloat16)}
        found["attention"], found["shared"] = self._check_attention(), engine_shared.check(partial(Attention, self.engine.weights))
        exact = as_float(self.model)
        found["engine"] = {name: self._check_engine(way, exact) for name, way in WAYS.items() if name in (*self.ways, "before")}
        gaps = {name: one["mean"] for name, one in found["engine"].items()}
        wrong = [name for name, gap in gaps.items() if not gap <= 1.15 * gaps["before"] + 1e-3]
        wrong += [name for name, one in found.items() if name != "engine" and not one["right"]]
        del exact
        torch.cuda.empty_cache()
        if wrong:
            publish(found, None)
            raise SystemExit(f"not right: {', '.join(wrong)}")
        return {**found, "right": True}

    def _check_draws(self, kind: torch.dtype) -> dict[str, Any]:
        """Tokens may differ only where rounding decides; log-probs of equal tokens must not."""
        worst, different, count = 0.0, 0, 0
        for rows in (1, 7, 64, 130):
            case = Draws(rows, 256, words=20011, kind=kind)
            tokens, logprobs = case.result(case.rows)
            for work in (case.tiles, case.fused):
                other, theirs = case.result(work)
                same = tokens == other
                different, count = different + int((~same).sum()), count + rows
                worst = max(worst, (logprobs - theirs)[same].abs().max().item())
        return {"right": worst < 1e-3 and different <= max(2, count // 50), "worst": worst, "different": different, "of": count}

    def _check_attention(self) -> dict[str, Any]:
        """The same result for every way to split and merge, over and over: an error that changes would be a race."""
        case = Attention(self.engine.weights, 24, 700, True)
        plain, worst = case.attend(False).float(), 0.0
        for programs in (264, 1056):
            for stages in (3, 5):
                with patch.multiple(paged_attention, PROGRAMS=programs, STAGES=stages):
                    for merge in (False, True, True, True):
                        worst = max(worst, ((case.attend(merge).float() - plain).norm() / plain.norm()).item())
        return {"right": worst < 1e-2 and not case.arrivals.any().item(), "worst": worst}

    def _check_engine(self, way: dict[str, Any], exact: Any) -> dict[str, float]:
        """Two turns of eight dialogues, the second one recorded; the distance of log-probs from the same model in float32."""
        self.use(way, 16, 1024)
        prompts = self.prompts(8, 300, 8 if way.get("cascade") else 1, seed=5)
        gaps = []
        for turn in range(4):
            found = sorted(self.all_of(prompts, 24), key=lambda r: r.key) if turn < 2 else self._again(prompts)
            rows = torch.tensor([[*ids, *r.token_ids] for ids, r in zip(prompts, found, strict=True)], device="cuda")
            mine = torch.tensor([r.logprobs for r in found], device="cuda")
            with torch.no_grad():
                logits = exact.model(rows).last_hidden_state[:, len(prompts[0]) - 1 : -1] @ exact.lm_head.weight.t()
            expected = logits.log_softmax(-1).gather(2, rows[:, len(prompts[0]) :, None])[..., 0]
            gaps.append((mine - expected).abs())
            rng = random.Random(turn)
            prompts = [[*ids, *r.token_ids, *(rng.randrange(WORDS) for _ in range(9))] for ids, r in zip(prompts, found, strict=True)]
        every = torch.cat([gap.flatten() for gap in gaps])
        return {"mean": every.mean().item(), "max": every.max().item()}

    def _chosen(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self.ways]

    def _again(self, prompts: list[list[int]]) -> list[Response]:
        self.submit(prompts, 24)
        return sorted(self.drain(), key=lambda r: r.key)

    # Single kernels.

    def draw(self) -> dict[str, Any]:
        width, table = SHAPES[self.shape]["hidden_size"], {}
        for rows in (8, 16, 32, 64, 96, 128, 192, 256, 384, 512):
            case = Draws(rows, width)
            times = {"rows": graph_us(case.rows), "tiles": graph_us(case.tiles)}
            if hopper_tiles.available(torch.device("cuda", 0)):
                times["product"] = graph_us(case.product)
            for blocks in BLOCKS:
                if blocks.rows <= max(16, 2 * rows) and blocks.rows * 8 >= min(rows, 128):
                    times["fused " + "×".join(map(str, blocks))] = graph_us(lambda case=case, blocks=blocks: case.fused(blocks))
            times = {name: us for name, us in times.items() if us < float("inf")}
            table[rows] = {"head alone": graph_us(case.logits), **dict(sorted(times.items(), key=lambda one: one[1]))}
        best = {rows: next(name for name in times if name != "head alone").split()[0] for rows, times in table.items()}
        return {"us": table, "MEASURED": [list(one) for one in best.items()]}

    def cut(self) -> dict[str, Any]:
        """The draw alone with top-p 0.95 and without it, by size of block and number of warps."""
        found: dict[str, Any] = {}
        for rows in (128, 512):
            for top_p in (0.95, 1.0):
                case = Draws(rows, 256, top_p)
                logits = case.logits()
                for block, warps in ((4096, 16), (2048, 8), (8192, 16), (8192, 32)):
                    with patch.multiple(draw_kernel, BLOCK=block, WARPS=warps):
                        name = f"{rows} rows, top-p {top_p}, {block} × {warps}"
                        found[name] = _or_none(lambda case=case, logits=logits: draw_kernel.draw_tokens(logits, *case.to))
                for tile, warps in ((2048, 4), (2048, 8), (2048, 2), (4096, 4), (1024, 4)):
                    name = f"{rows} rows, top-p {top_p}, in tiles of {tile}, {warps} warps"
                    found[name] = _or_none(partial(nucleus_kernel.draw_nucleus, logits, case.to, tile, warps))
        return found

    def attention(self) -> dict[str, Any]:
        """Decode attention of one layer by how it is split among programs, warps and loads ahead; us, the fastest first."""
        found: dict[str, Any] = {}
        weights = self.engine.weights
        for lanes, context, ragged in ((128, 1152, False), (128, 1152, True), (128, 4400, False), (128, 4400, True), (512, 1152, False)):
            case = Attention(weights, lanes, context, ragged)
            times = {"floor": case.bytes / self.ceiling["copy_bytes_per_s"] * 1e6}
            for programs in (264, 528, 1056, 2112):
                for warps, stages in ((2, 3), (2, 5), (4, 3), (4, 5)):
                    with patch.multiple(paged_attention, PROGRAMS=programs, WARPS=warps, STAGES=stages):
                        for merge in (False, True):
                            name = f"{programs} programs, {warps} warps, {stages} stages, {'merged inside' if merge else 'merge'}"
                            times[name] = graph_us(lambda case=case, merge=merge: case.attend(merge))
            for warps, stages in ((2, 2), (2, 3), (2, 4), (4, 2), (4, 3)):
                with patch.multiple(paged_attention, WARPS=warps, STAGES=stages, NEXT=True):
                    times[f"264 programs, {warps} warps, {stages} stages, merged inside, next"] = graph_us(
                        lambda case=case: case.attend(True)
                    )
            found[f"{lanes} lanes at {context}{', ragged' if ragged else ''}"] = dict(sorted(times.items(), key=lambda one: one[1])[:9])
            found[f"{lanes} lanes at {context}{', ragged' if ragged else ''}"]["now"] = times["528 programs, 2 warps, 3 stages, merge"]
            del case
            torch.cuda.empty_cache()
        return found

    def shared(self) -> dict[str, Any]:
        """Rows that share a prefix, and caches in 8 bits."""
        alone = engine_shared.kernels(partial(Attention, self.engine.weights), graph_us)
        return {"us of a layer": alone, "ms per step": engine_shared.engine(self)}

    # The engine.

    def steps(self) -> dict[str, Any]:
        """Milliseconds of a decode step at 1,152 tokens, by way; top-p 0.95 for some of them."""
        found: dict[str, Any] = {}
        for lanes in (128, 512):
            for top_p, names in ((1.0, WAYS), (0.95, ("before", "all, tiles", "now", "by rows", "no product"))):
                self.top_p = top_p
                for name in self._chosen(names):
                    self.use(WAYS[name], lanes)
                    found[f"{lanes} rows, top-p {top_p}, {name}"] = self.decode(lanes)["ms_per_step"]
        self.top_p = 1.0
        for name in self._chosen(("before", "all, tiles", "all, fused")):
            self.use(WAYS[name], 128, 4864)
            found[f"128 rows at 4,400, {name}"] = self.decode(128, 4400)["ms_per_step"]
        return found

    def whole(self) -> dict[str, Any]:
        found = {}
        for name in self.ways:
            self.use(WAYS[name], 128)
            found[name] = {"128 × (1,024 + 128)": self.end_to_end()["s"], "in groups of 8": self.end_to_end(8)["s"]}
        return found

    def play(self, dialogues: int = 128, turns: int = 8, new: int = 24, most: int = 16) -> float:
        """Dialogues of short turns: each continues the moment it is answered, after between half and all of `most` tokens."""
        self.engine.refresh()
        rng = random.Random(0)
        prompts = [[rng.randrange(WORDS) for _ in range(200 + n % 50)] for n in range(dialogues)]
        left = dict.fromkeys(range(dialogues), turns)
        limits = [rng.randrange(most // 2, most + 1) for _ in range(dialogues * turns)]

        def go() -> None:
            asked = [Request(n, ids, Sampling(max_tokens=limits[n]), seed=n, sequence=n) for n, ids in enumerate(prompts)]
            while asked or self.engine.pending:
                self.engine.submit(asked)
                asked = []
                for response in self.engine.poll():
                    n = response.key
                    left[n] -= 1
                    prompts[n] = [*prompts[n], *response.token_ids, *(rng.randrange(WORDS) for _ in range(new + n % 9))]
                    if left[n]:
                        sampling = Sampling(max_tokens=limits[n + dialogues * (turns - left[n])])
                        asked.append(Request(n, prompts[n], sampling, seed=n, sequence=n))

        return seconds(go)

    def games(self) -> dict[str, Any]:
        found = {}
        for name in self._chosen(
            ("before", "record", "all, tiles", "all, fused", "now", "own, overlap", "balance", "own, overlap, balance")
        ):
            self.use(WAYS[name], 128)
            times = [self.play() for _ in range(4)]
            found[name] = {"s": min(times[1:]), "first": times[0], "recorded": len(getattr(self.engine._runner, "_graphs_of", ()))}
        return found

    def timeline(self, path: Path | None) -> dict[str, Any]:
        lines = []
        for name in ("before", "all, tiles"):
            self.use(WAYS[name], 128)
            for _ in range(2):
                self.play(turns=4)
            activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities) as profiler:
                self.play(turns=3)
            lines.append(Timeline.of(name, profiler.events() or ()))
        if path is not None:
            picture(lines, path)
        return {line.name: line.summary() for line in lines}


def _or_none(work: Callable[[], None]) -> float:
    """Its time; infinite if the GPU has no room for it."""
    try:
        return median_us(work)
    except Exception as error:
        print("skipped:", str(error).splitlines()[0][:120], flush=True)
        return float("inf")


def lines(result: dict[str, Any], before: str = "") -> list[str]:
    """A result as lines of name and number."""
    found = []
    for name, value in result.items():
        if isinstance(value, dict):
            found += lines(value, f"{before}{name} | ")
        elif isinstance(value, float):
            found.append(f"{before}{name}: {value:.4g}")
        else:
            found.append(f"{before}{name}: {value}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1.5b")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="which ways the engine is run in")
    parser.add_argument("--table", type=Path, help="a result of engine_products.py, whose products the engine uses")
    parser.add_argument("--timeline", type=Path, help="where the picture goes (SVG)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.table:
        engine_products.use_table(json.loads(options.table.read_text()))
    bench = Steps(options.shape, options.ways)
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "shape": options.shape, **bench.ceiling}
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "products": lambda: engine_products.measure([options.shape], list(engine_products.ROWS), 110, 14),
        "prompt": lambda: engine_products.prompts([options.shape]),
        "check": bench.check, "draw": bench.draw, "cut": bench.cut, "attention": bench.attention, "shared": bench.shared,
        "decode": bench.steps,
        "whole": bench.whole, "games": bench.games, "timeline": lambda: bench.timeline(options.timeline),
    }  # fmt: skip
    for part in PARTS:
        if part in options.parts:
            start = time.perf_counter()
            result[part] = work[part]()
            print(f"{part}: {time.perf_counter() - start:.0f} s", flush=True)
            if options.out:  # after each part: a run that is cut keeps what it has
                publish(result, options.out)
    print("\n".join(lines(result)))


if __name__ == "__main__":
    main()
