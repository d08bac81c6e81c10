"""A decode step of the native engine as one recorded graph, with settings of its kernels changed one by one: which are best on this GPU?

    python benchmarks/engine_tuning.py --out tuning.json                          # 1.5B, about a minute
    python benchmarks/engine_tuning.py --shape 0.5b --cases "128 at 1152" --names now library
    python benchmarks/engine_tuning.py --shape 7b --base 4bit --cases "16 at 768" --names now "bitsandbytes multiplies"

Every setting is used for a graph of its own, whose tokens' log-probs are compared with those of the first setting (`gap`, a mean; where
another order of sums leads to another token, it is the distance of two tokens, and may be large); then all graphs are replayed in turn,
several times, so that a GPU that changes its clock does so for all of them. Milliseconds, medians. No host is in these figures:
`engine_steps.py` has whole steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import on_gpu  # noqa: F401 (first)
import torch
from engine import make_model
from engine_shapes import SHAPES
from results import publish

from turnwise.engines.native import NativeEngine, balance_kernel, hopper_attention, kernels, paged_attention, product_table
from turnwise.engines.native.hopper_tiles import Tile
from turnwise.engines.native.layer_products import LayerProducts
from turnwise.engines.native.mail import Results
from turnwise.engines.native.product_table import Blocks
from turnwise.engines.native.switches import Switches
from turnwise.learn.fourbit import pack_base

CASES = {  # rows, tokens on average, and how rows differ
    "128 at 768": (128, 768, "even"),
    "128 at 1152": (128, 1152, "even"),
    "64 at 768": (64, 768, "even"),
    "32 at 768": (32, 768, "even"),
    "16 at 768": (16, 768, "even"),
    "8 at 768": (8, 768, "even"),
    "128 ragged": (128, 1152, "ragged"),
    "96 ragged": (96, 1152, "ragged"),
    "192 at 1152": (192, 1152, "even"),
    "192 ragged": (192, 1152, "ragged"),
    "256 at 1152": (256, 1152, "even"),
    "256 ragged": (256, 1152, "ragged"),
    "384 at 1152": (384, 1152, "even"),
    "384 ragged": (384, 1152, "ragged"),
    "512 at 1152": (512, 1152, "even"),
    "512 at 1120": (512, 1120, "even"),
    "512 ragged": (512, 1152, "ragged"),
    "128 at 736": (128, 736, "even"),
    "128 at 4400": (128, 4400, "even"),
    "128 ragged, long": (128, 2600, "ragged"),
    "128, few long": (128, 1152, "few long"),
    "512, few long": (512, 1152, "few long"),
}
DOWN, GATE = ("down", 8960, 1536), (1536, 17920)
QKV, OUT, SMALL_OUT = ("qkv", 1536, 2048), ("out", 1536, 1536), ("out", 896, 896)
AHEAD = {
    key: tuple((most, blocks and blocks._replace(ahead=1)) for most, blocks in product_table.MEASURED[key]) for key in (OUT, SMALL_OUT)
}
# name: switches, settings of attention and norms, other blocks or tiles for products
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[Any, Any]]] = {
    "now": ({}, {}, {}),
    "library": ({"products": False, "gate": False, "gate_tiles": False, "overlap": False}, {}, {}),
    "no gate tiles": ({"gate_tiles": False}, {}, {}),
    "no overlap": ({"overlap": False}, {}, {}),
    "attention in Triton": ({"stream": False}, {}, {}),
    "attention in CUDA": ({}, {"ALWAYS": 0}, {}),
    "attention in Triton, whole pages": ({"stream": False}, {"LOT": 0}, {}),
    "attention in Triton, 1 warp": ({"stream": False}, {"WARPS": 1}, {}),
    "3 stages, next": ({"stream": False}, {"STAGES": 3, "NEXT": True}, {}),
    "3 stages, two parts": ({"stream": False}, {"STAGES": 3, "PROGRAMS": 528}, {}),
    "gate, 0 ahead": ({}, {}, {GATE: ((128, Tile(72, 6, 1, 2, ahead=0)), (512, Tile(96, 5, 1, 2, ahead=0)))}),
    "gate, 1 ahead": ({}, {}, {GATE: ((128, Tile(72, 6, 1, 2, ahead=1)), (512, Tile(96, 5, 1, 2, ahead=1)))}),
    "gate, 2 ahead": ({}, {}, {GATE: ((128, Tile(72, 6, 1, 2, ahead=2)), (512, Tile(96, 5, 1, 2, ahead=2)))}),
    "gate, 3 ahead": ({}, {}, {GATE: ((128, Tile(72, 6, 1, 2, ahead=3)), (512, Tile(96, 5, 1, 2, ahead=3)))}),
    "gate, 4 stages": ({}, {}, {GATE: ((128, Tile(72, 4, 1, 2)), (512, Tile(96, 4, 1, 2)))}),
    "gate, alone": ({}, {}, {GATE: ((128, Tile(72, 6, 1, 1)), (512, Tile(96, 5, 2, 1)))}),
    "gate, 3 stages, small down": ({}, {}, {GATE: ((128, Tile(72, 3, 1, 2)),), DOWN: ((128, Blocks(128, 64, 64, 5, 4, 4, True, 1)),)}),
    "small down": ({}, {}, {DOWN: ((128, Blocks(128, 64, 64, 5, 4, 4, True, 1)),)}),
    "gate, 512 in narrow tiles": ({}, {}, {GATE: ((512, Tile(56, 7, 2, 1)),)}),
    "out, 1 ahead": ({}, {}, AHEAD),
    "qkv in two parts": ({}, {}, {QKV: ((128, Blocks(64, 64, 128, 2, 4, 5, True, 1)),)}),
    "out, 1 ahead, and qkv in two parts": ({}, {}, AHEAD | {QKV: ((128, Blocks(64, 64, 128, 2, 4, 5, True, 1)),)}),
    "norms, 4 warps": ({}, {"NORM_WARPS": (4, 4)}, {}),
    "norms, 8 warps": ({}, {"NORM_WARPS": (8, 8)}, {}),
    "norms, 16 warps": ({}, {"NORM_WARPS": (16, 16)}, {}),
    "norms, 32 warps": ({}, {"NORM_WARPS": (32, 32)}, {}),
    "balance": ({"balance": True}, {}, {}),
    "balance, nothing asked for ahead": ({"balance": True}, {"BRING": 0}, {}),
    "the library's down": ({}, {}, {DOWN: ((128, None),)}),
    "bitsandbytes multiplies": ({"packed": False}, {}, {}),
    "own down, 128 × 64": ({}, {}, {DOWN: ((128, Blocks(128, 64, 64, 5, 4, 7, True, 1)),)}),
}


class Step:
    """A model with a cache of random numbers, and graphs of its decode step."""

    def __init__(self, shape: str, base: str = "full"):
        self.model = make_model(shape)
        if base == "4bit":
            self.model = pack_base(self.model, "cuda", torch.bfloat16)
        layer = 4 * SHAPES[shape]["num_hidden_layers"] * SHAPES[shape]["num_key_value_heads"]
        size = SHAPES[shape]["hidden_size"] // SHAPES[shape]["num_attention_heads"]
        room = 1.05 * 512 * 1280 * layer * size
        self.engine = NativeEngine(self.model, max_batch=512, max_length=4608, cache_memory=room)
        self.runner: Any = self.engine._runner
        self.runner.cache.normal_()

    def prepare(self, lanes: int, context: int, spread: str) -> None:
        """Rows of so many tokens on average, which are "even", "ragged" (a quarter to seven quarters), or a "few long" (every 16th has 3.75
        times as many)."""
        generator = torch.Generator().manual_seed(0)
        factor = torch.ones(lanes)
        if spread == "ragged":
            factor = 0.25 + 1.5 * torch.rand(lanes, generator=generator)
        elif spread == "few long":
            factor = torch.where(torch.arange(lanes) % 16 == 5, 3.75, 12.25 / 15)
        positions = (context * factor).int() - 1
        width = -(-int(positions.max() + 1) // 64)
        counts = positions // 64 + 1
        first = torch.cumsum(counts, 0) - counts  # every row has pages of its own, up to its end
        order = torch.randperm(self.runner.page_count, generator=generator)
        pages = order[(first[:, None] + torch.arange(width)) % len(order)].int()
        self.runner.tables.pages[:lanes, :width] = pages.cuda()
        self.runner.tables.floats[:] = torch.tensor([1.0, 1.0, 0.0])
        self.runner.tables.integers[:, 0] = 0
        last = pages.gather(1, (positions // 64)[:, None].long())[:, 0]
        slots = torch.arange(lanes).int()
        self.control = torch.stack([slots, positions, last, torch.zeros(lanes).int()]).cuda()
        self.lanes = lanes

    def record(self, name: str) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        switches, kernel_settings, table = SETTINGS[name]
        self.runner.switches = Switches.of(switches)
        self.runner._products = LayerProducts(self.runner.weights, self.runner.switches)
        results = Results(self.lanes, self.runner.weights.device)
        with ExitStack() as patched, torch.no_grad():
            patched.enter_context(patch.dict(product_table.MEASURED, {key: lines for key, lines in table.items() if len(key) == 3}))
            patched.enter_context(patch.dict(product_table.TILES, {key: lines for key, lines in table.items() if len(key) == 2}))
            for module in (paged_attention, balance_kernel, hopper_attention, kernels):
                own = {name: value for name, value in kernel_settings.items() if hasattr(module, name)}
                if own:
                    patched.enter_context(patch.multiple(module, **own))
            way = self.runner.switches.way(self.lanes)
            positions, kv_heads = self.control[1].cpu().numpy(), self.runner.weights.shape.kv_heads
            stream = self.runner._takes_rows(self.lanes) and hopper_attention.pays(positions, kv_heads)
            self.runner.tables.last.zero_()
            self.runner._decode_into(self.control, results, way, None, stream)
            torch.cuda.synchronize()
            found = results.logprobs.clone()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.runner._decode_into(self.control, results, way, None, stream)
        return graph, found

    def measure(self, names: list[str], rounds: int = 7, replays: int = 6) -> dict[str, Any]:
        graphs: dict[str, Any] = {}
        first: torch.Tensor | None = None
        gaps = {}
        for name in names:
            try:
                graphs[name], found = self.record(name)
            except Exception as error:
                print("skipped:", name, str(error).splitlines()[0][:150], flush=True)
                continue
            first = found if first is None else first
            gaps[name] = (found - first).abs().mean().item()
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for number in range(rounds + 1):
            for name, graph in graphs.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                for _ in range(replays):
                    graph.replay()
                end.record()
                torch.cuda.synchronize()
                if number:
                    times[name].append(start.elapsed_time(end) / replays)
        return {name: {"ms": statistics.median(found), "least": min(found), "gap": gaps[name]} for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1.5b")
    parser.add_argument("--base", choices=("full", "4bit"), default="full", help="4bit: weights as bitsandbytes packs them (extra 4bit)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--names", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begun = time.perf_counter()
    step = Step(options.shape, options.base)
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "shape": options.shape}
    result |= {"base": options.base} if options.base != "full" else {}
    for case in options.cases:
        step.prepare(*CASES[case])
        result[case] = step.measure(options.names)
        for name, one in sorted(result[case].items(), key=lambda item: item[1]["ms"]):
            print(f"{case}: {name}: {one['ms']:.3f} ms, at least {one['least']:.3f}, gap {one['gap']:.4f}", flush=True)
        print(f"{time.perf_counter() - begun:.0f} s", flush=True)
    publish(result, options.out)


if __name__ == "__main__":
    main()
