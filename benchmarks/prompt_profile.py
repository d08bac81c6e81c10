"""Where the time of prompts goes in the native engine: by kind of kernel, and how long the GPU idles.

    python benchmarks/prompt_profile.py                                     # 1.5B shape on a GPU, about half a minute
    python benchmarks/prompt_profile.py --budgets 16384 --switches gate_tiles # next to an engine with a switch turned round
    python benchmarks/prompt_profile.py --shape tiny                        # also on a CPU: by operation

`kinds` is one pass over 32 prompts of 1,024 tokens: milliseconds, number of kernels, and the rate at which a kind computes or moves bytes.
`wall` is a pass without profiler, `idle` is wall without the time in which a kernel ran, `between` the part of it between two kernels of
the profiled pass; the rest is before the first and after the last one. `host` is what happens before the first kernel of 128 prompts.
`whole` runs 128 × (1,024 + 1) and 128 × (1,024 + 128) tokens. All of it is done for each number of tokens per step (`--budgets`).
Models have random weights. Every wall time is the least of three after one that is not counted. `product TFLOP/s` is the rate of the
library's product of 8,192 × 8,192 matrices: of ten of them, and of as many as take a second, in which a GPU may lower its clock.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from engine_shapes import SHAPES, WORDS
from results import publish
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnwise.engines.base import Request, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.native.switches import Switches

TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
NAMES = {  # how a kernel's name begins, or for the library's a part of it: its kind
    "_add_norm": "norms", "_gated": "gate, up", "gate_tiles": "gate, up", "_gate_mul": "activation", "_rotate": "rotation",
    "_prompt": "attention", "_single": "attention", "_merge": "attention", "_product": "product", "nvjet": "product", "gemm": "product",
    "cutlass": "product", "splitk": "product", "head_tiles": "output layer", "_draw": "draw", "_choose": "draw", "_of_logits": "draw",
    "_of_hidden": "draw", "_pick_levels": "draw", "_scan": "draw", "_settle": "draw", "_add_up": "draw", "_rest": "draw",
    "memcpy": "copies", "memset": "copies",
}  # fmt: skip
NEXT = {"attention": "out", "out": "gate, up", "gate, up": "down"}  # which product follows; otherwise queries, keys and values


def kinds_of(names: Iterable[str]) -> list[str]:
    """The kinds of kernels that ran in this order. The library's products have no names of their own: they are told by their order."""
    found: list[str] = []
    place, product = "", 0
    for name in names:
        low = name.lower()
        kind = next((kind for start, kind in NAMES.items() if low.startswith(start) or (start[0] != "_" and start in low)), "other")
        if kind == "product":
            kind = place = place if "splitkreduce" in low else NEXT.get(place, "qkv")
            product = len(found)
        elif kind in ("attention", "gate, up"):
            place = kind
        elif kind == "draw" and found[product] == "qkv":
            found[product] = "output layer"
        found.append(kind)
    return found


def make_model(shape: str, device: str) -> Any:
    torch.manual_seed(0)
    tiny = shape == "tiny"
    config = Qwen2Config(
        **(TINY if tiny else SHAPES[shape]), vocab_size=512 if tiny else WORDS, max_position_embeddings=32768, bos_token_id=None,
        eos_token_id=None, tie_word_embeddings=shape != "7b", rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    with torch.device(device):
        model = Qwen2ForCausalLM(config).eval()
    torch.set_default_dtype(before)
    return model


class Prompts:
    """A model, and an engine on it that reads prompts."""

    def __init__(self, shape: str, device: str):
        self.model, self.device, self.seed = make_model(shape, device), device, 0
        self.engine: Any = None

    def use(self, budget: int | None, turned: str = "") -> None:
        """A new engine. `turned`: a switch that is not as it is by default."""
        if self.engine is not None:
            self.engine.close()
        memory = 0.5 if self.device == "cuda" else 2**28
        switches = {turned: not getattr(Switches(), turned)} if turned else {}
        settings: dict[str, Any] = {"cache_memory": memory, "prefill_tokens": budget, "switches": switches}
        self.engine = NativeEngine(self.model, max_batch=128, max_length=1536, **settings)

    def requests(self, count: int, length: int, tokens: int) -> list[Request]:
        self.seed += 1
        rng, words = random.Random(self.seed), self.model.config.vocab_size
        prompts = [[rng.randrange(words) for _ in range(length)] for _ in range(count)]
        return [Request(n, ids, Sampling(max_tokens=tokens), seed=n, sequence=n) for n, ids in enumerate(prompts)]

    def run(self, requests: list[Request]) -> float:
        """Seconds from new weights to the last response."""
        self.wait()
        start = time.perf_counter()
        self.engine.refresh()
        self.engine.submit(requests)
        while self.engine.pending:
            self.engine.poll()
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def least(self, count: int, length: int, tokens: int) -> float:
        asked = [self.requests(count, length, tokens) for _ in range(4)]
        return min([self.run(requests) for requests in asked][1:])

    def host(self, count: int, length: int) -> dict[str, float]:
        """Milliseconds of the host before the GPU can begin, and of planning and launching the first step."""
        requests = self.requests(count, length, 1)
        found = {}
        for name, work in (
            ("refresh", self.engine.refresh),
            ("submit", lambda: self.engine.submit(requests)),
            ("plan and launch", self.engine._advance),
        ):
            start = time.perf_counter()
            work()
            found[name] = (time.perf_counter() - start) * 1e3
        while self.engine.pending:
            self.engine.poll()
        return found

    def kinds(self, count: int, length: int) -> dict[str, Any]:
        """One pass by kind of kernel."""
        wall = self.least(count, length, 1)
        requests = self.requests(count, length, 1)
        on_gpu = self.device == "cuda"
        activities = [torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as profiler:
            self.run(requests)
        if not on_gpu:
            times = {one.key: one.self_cpu_time_total / 1e3 for one in profiler.key_averages()}
            return {"wall ms": wall * 1e3, "ms": dict(Counter(times).most_common(12))}
        spans = sorted((e.time_range.start, e.time_range.end, e.name) for e in profiler.events() or () if "CUDA" in str(e.device_type))
        ms: Counter[str] = Counter()
        kernels: Counter[str] = Counter()
        longest: dict[str, Counter[str]] = {}
        for (start, end, name), kind in zip(spans, kinds_of(name for _, _, name in spans), strict=True):
            ms[kind] += (end - start) / 1e3
            kernels[kind] += 1
            longest.setdefault(kind, Counter())[name[:70]] += (end - start) / 1e3
        busy, between = busy_and_gaps([(start, end) for start, end, _ in spans])
        rates = self.work(count, length)
        table = {
            kind: {"ms": time, "kernels": kernels[kind], **_rate(rates.get(kind), time), "most": longest[kind].most_common(1)[0][0]}
            for kind, time in ms.most_common()
        }
        return {"wall ms": wall * 1e3, "busy ms": busy / 1e3, "idle ms": wall * 1e3 - busy / 1e3, "between ms": between / 1e3, **table}

    def work(self, count: int, length: int) -> dict[str, tuple[str, float]]:
        """What a pass computes or moves, by kind. Of the last layer, that is queries, keys and values, their rotation and one norm."""
        config, tokens = self.model.config, count * length
        layers, hidden, middle = config.num_hidden_layers, config.hidden_size, config.intermediate_size
        both = hidden + 2 * config.num_key_value_heads * (hidden // config.num_attention_heads)
        found = {"qkv": ("TFLOP/s", 2.0 * tokens * layers * hidden * both)}
        for kind, size in (("out", hidden**2), ("gate, up", 2 * hidden * middle), ("down", hidden * middle)):
            found[kind] = ("TFLOP/s", 2.0 * tokens * (layers - 1) * size)
        found["attention"] = ("TFLOP/s", 2.0 * (layers - 1) * hidden * count * length**2)
        found["norms"] = ("TB/s", (2.0 * layers - 1) * tokens * hidden * 4 * 2)
        found["rotation"] = ("TB/s", 2.0 * layers * tokens * both * 2)
        found["activation"] = ("TB/s", 2.0 * (layers - 1) * tokens * middle * 3)
        return found


def _rate(work: tuple[str, float] | None, ms: float) -> dict[str, float]:
    return {work[0]: work[1] / ms / 1e9} if work and ms else {}


def busy_and_gaps(spans: list[tuple[float, float]]) -> tuple[float, float]:
    """How long at least one of these ran, and how long none did between the first and the last."""
    busy, end = 0.0, spans[0][0] if spans else 0.0
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy, (end - spans[0][0] - busy) if spans else 0.0


def product_rates() -> dict[str, float]:
    """How fast the library's product is for a moment, and for a second."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found = {}
    for name, count in (("first", 3), ("ten", 10), ("a second", 720)):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(count):
            left @ right
        end.record()
        torch.cuda.synchronize()
        found[name] = 2 * 8192**3 * count / start.elapsed_time(end) / 1e9
    return {name: found[name] for name in ("ten", "a second")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=[*SHAPES, "tiny"], default="1.5b")
    parser.add_argument("--parts", nargs="+", choices=("kinds", "host", "whole"), default=("kinds", "host", "whole"))
    parser.add_argument("--budgets", nargs="+", type=int, default=[16384, 32768, 8192])
    parser.add_argument("--switches", nargs="*", default=[], help="each is turned round, one after another, with the first budget")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    bench = Prompts(options.shape, device)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    result: dict[str, Any] = {"device": name, "torch": torch.__version__, "shape": options.shape}
    if device == "cuda":
        result["product TFLOP/s"] = product_rates()
    sizes = options.prompts, options.length
    many = 4 * options.prompts, options.length
    for budget, turned in [*((budget, "") for budget in options.budgets), *((options.budgets[0], name) for name in options.switches)]:
        bench.use(budget, turned)
        work: dict[str, Callable[[], Any]] = {
            "kinds": lambda: bench.kinds(*sizes),
            "host": lambda: bench.host(*many),
            "whole": lambda: {"prompts s": bench.least(*many, 1), "prompts and 128 tokens s": bench.least(*many, 128)},
        }
        result[f"{budget} tokens per step" + (f", {turned} turned round" if turned else "")] = {
            part: work[part]() for part in options.parts
        }
    publish(result, options.out)


if __name__ == "__main__":
    main()
