"""Decode attention whose programs all read the same number of pages (the switch `balance`) next to the present way, one layer on a GPU.

    python benchmarks/engine_balance.py --out benchmarks/engine_balance.json       # about 40 seconds
    python benchmarks/engine_balance.py --seconds 20 --cases "128 at 1152, ragged"

Every way is checked first, on every case: against attention in float32, for zeros in what counts arrivals, and for the same bits in several
runs. What is timed is recorded and replayed over as many caches as the GPU cannot remember. The plan is not part of the times of a layer:
it is made once per step, and timed alone. The kernels are compiled by several processes. The ways are tried in the order of their promise,
until `--seconds` are over. The last lines name the fastest ways of each case, and those that are fastest over all of them.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import on_gpu  # noqa: F401 (first)
import torch
from engine_products import graph_us
from results import publish

from turnwise.engines.native import balance_kernel, paged_attention

PAGE = 64
COLD = 400 << 20  # bytes of keys and values that are read in turn: many times the GPU's cache
SHAPES = {"1.5b": (12, 2, 128), "0.5b": (14, 2, 64)}  # heads, key heads, size
CASES = {
    "128 at 1152": ("1.5b", 128, 1152, False, 0),
    "128 at 1152, ragged": ("1.5b", 128, 1152, True, 0),
    "128 at 4400": ("1.5b", 128, 4400, False, 0),
    "128 at 4400, ragged": ("1.5b", 128, 4400, True, 0),
    "512 at 1152": ("1.5b", 512, 1152, False, 0),
    "0.5b: 128 at 1152, ragged": ("0.5b", 128, 1152, True, 0),
    "97 at 500, ragged, and 31 for padding": ("1.5b", 97, 500, True, 31),
    "8 at 2000, ragged": ("1.5b", 8, 2000, True, 0),
    "1 at 8000": ("1.5b", 1, 8000, False, 0),
}


class Way(NamedTuple):
    """Settings of `balance_kernel`; `paged`: the present way, with that many programs instead."""

    resident: int
    warps: int = 2
    stages: int = 5
    next: bool = False
    bring: int = 2
    beginning: int = 1
    least: int = 2
    merging: int = 1
    paged: int = 0

    @property
    def name(self) -> str:
        what = f"{self.paged} programs" if self.paged else f"{self.resident} resident"
        text = f"{what}, {self.warps} warps, {self.stages} stages{', next' if self.next else ''}"
        return text if self.paged else f"{text}, bring {self.bring}, beginning {self.beginning}, merging {self.merging}, least {self.least}"

    @property
    def kernel(self) -> Way:
        """The same with what is no part of the compiled kernel left as it is."""
        return self._replace(resident=2, beginning=1, least=2, merging=1, paged=0)


PRESENT = Way(0, paged=264)
KERNELS = [
    Way(2), Way(2, stages=4, next=True), Way(2, stages=3, next=True), Way(2, bring=0), Way(2, bring=4), Way(2, warps=4),
    Way(2, warps=4, stages=4, next=True), Way(2, stages=2, next=True), Way(2, warps=4, stages=3, next=True),
]  # fmt: skip
WAYS = [
    PRESENT, *(kernel._replace(resident=count) for count in (2, 3) for kernel in KERNELS[:3]),
    *(Way(2, beginning=beginning) for beginning in (0, 2, 3)), *(Way(2, merging=merging) for merging in (-99, 3)),
    *(Way(2, least=least) for least in (1, 3, 4)),
    *(kernel._replace(resident=count) for kernel in KERNELS[3:6] for count in (2, 3)), Way(1), Way(4), Way(6), Way(8),
    *(PRESENT._replace(paged=count) for count in (528, 2112)), KERNELS[6], KERNELS[7]._replace(resident=5),
    KERNELS[8]._replace(resident=3), Way(2, stages=5, next=True), Way(12), Way(16),
]  # fmt: skip


def chosen(way: Way) -> Any:
    """The kernels' modules with the settings of a way."""
    if way.paged:
        return patch.multiple(paged_attention, PROGRAMS=way.paged, WARPS=way.warps, STAGES=way.stages, NEXT=way.next)
    return patch.multiple(
        balance_kernel, RESIDENT=way.resident, WARPS=way.warps, STAGES=way.stages, NEXT=way.next, BRING=way.bring, BEGINNING=way.beginning,
        LEAST=way.least, MERGING=way.merging,
    )  # fmt: skip


class Case:
    """Caches of one layer with random keys and values, and queries for one token per lane."""

    def __init__(self, shape: str, lanes: int, context: int, ragged: bool, padding: int, cold: int = COLD):
        heads, kv_heads, size = SHAPES[shape]
        self.shape = SimpleNamespace(
            heads=heads, kv_heads=kv_heads, head_dim=size, group=heads // kv_heads, eps=1e-6, scale=size**-0.5
        )  # fmt: skip
        self.layer = SimpleNamespace(q_norm=None, k_norm=None, rotation=0, window=0, shift=None)
        rng = random.Random(0)
        lengths = [int(context * rng.uniform(0.25, 1.75)) if ragged else context for _ in range(lanes)] + [1] * padding
        self.lanes, self.lengths = lanes, lengths
        pages = [-(-length // PAGE) for length in lengths[:lanes]] + [1] * (padding > 0)
        numbers = torch.randperm(sum(pages)).int().split(pages)
        table = torch.zeros(len(pages), -(-max(pages) // 16) * 16, dtype=torch.int32)
        for row, own in zip(table, numbers, strict=True):
            row[: len(own)] = own
        angles = torch.arange(max(lengths) + 1, device="cuda")[:, None] * 10000.0 ** (-torch.arange(size // 2, device="cuda") / (size // 2))
        cos, sin = torch.cat([angles.cos()] * 2, -1).bfloat16(), torch.cat([-angles.sin(), angles.sin()], -1).bfloat16()
        self.tables = SimpleNamespace(cos=(cos,), sin=(sin,), pages=table.cuda())
        self.bytes = sum(lengths[:lanes]) * 4 * kv_heads * size
        copies = max(1, min(12, -(-cold // self.bytes)))
        self.caches = [torch.randn(2, sum(pages), kv_heads, PAGE, size, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        self.qkv = torch.randn(len(lengths), (heads + 2 * kv_heads) * size, device="cuda", dtype=torch.bfloat16)
        self.slots = torch.tensor([*range(lanes), *[lanes] * padding], device="cuda").int()
        self.positions = torch.tensor(lengths, device="cuda").int() - 1
        self.arrivals = torch.zeros(len(lengths) * kv_heads, dtype=torch.int32, device="cuda")

    def plan(self) -> Any:
        return balance_kernel.plan_of(self.slots, self.positions, PAGE, 0, self.shape.kv_heads)

    def attend(self, plan: Any, number: int = 0) -> torch.Tensor:
        cache = self.caches[number % len(self.caches)]
        if plan is not None:
            return balance_kernel.attend_balanced(self.qkv, cache, self.layer, self.tables, plan, self.shape, self.arrivals)
        return paged_attention.attend_singles(
            self.qkv, cache, self.layer, self.tables, self.slots, self.positions, self.shape, self.arrivals
        )  # fmt: skip

    def exact(self) -> torch.Tensor:
        """Attention in float32, lane by lane; the new keys and values go into the first cache."""
        s, rows = self.shape, []
        size = s.head_dim
        for lane in range(self.lanes):
            length, own = self.lengths[lane], self.qkv[lane].view(-1, size).float()
            turning = own[: s.heads + s.kv_heads]
            cos, sin = (x[0][length - 1].float() for x in (self.tables.cos, self.tables.sin))
            turned = (turning * cos + turning.roll(size // 2, -1) * sin).bfloat16()
            pages = self.tables.pages[lane, : -(-length // PAGE)].long()
            self.caches[0][0, pages[-1], :, (length - 1) % PAGE] = turned[s.heads :]
            self.caches[0][1, pages[-1], :, (length - 1) % PAGE] = own[s.heads + s.kv_heads :].bfloat16()
            keys, values = (x[pages].transpose(0, 1).flatten(1, 2)[:, :length].float() for x in self.caches[0])
            score = turned[: s.heads].float().view(s.kv_heads, s.group, size) @ keys.transpose(1, 2) * s.scale
            rows.append((score.softmax(-1) @ values).flatten())
        return torch.stack(rows)

    def error(self, way: Way, exact: torch.Tensor) -> float:
        """The distance from attention in float32; infinite if runs differ, or if arrivals are left."""
        with chosen(way):
            plan = None if way.paged else self.plan()
            found = [self.attend(plan)[: self.lanes].clone() for _ in range(4)]
        if not all(torch.equal(found[0], other) for other in found) or self.arrivals.any():
            self.arrivals.zero_()
            return float("inf")
        return float((found[0].float() - exact).norm() / exact.norm())

    def us(self, way: Way, calls: int = 12) -> float:
        with chosen(way):
            plan = None if way.paged else self.plan()
            return graph_us([partial(self.attend, plan, n) for n in range(calls)])


def copy_rate() -> float:
    """Bytes per second that the GPU reads and writes when it copies."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * len(source) / graph_us([lambda: target.copy_(source)] * 4) * 1e6


def compile_some(jobs: list[tuple[str, Way]]) -> None:
    """What this leaves in Triton's cache on disk is found by other processes."""
    for name, way in jobs:
        shape, lanes, _, ragged, padding = CASES[name]
        try:
            case = Case(shape, lanes, 100, ragged, padding, cold=0)
            with chosen(way):
                case.attend(None if way.paged else case.plan())
        except Exception as error:
            print("skipped:", name, way.name, str(error).splitlines()[0][:100], flush=True)
    torch.cuda.synchronize()


def compile_all(workers: int) -> None:
    """The present way's kernels depend on the number of lanes, the others on the shape alone; plans on the number of lanes."""
    jobs: dict[Any, tuple[str, Way]] = {}
    for name, (shape, lanes, _, _, padding) in CASES.items():
        jobs.update({(shape, lanes + padding, way): (name, way) for way in [*(way for way in WAYS if way.paged), WAYS[1]]})
        jobs.update({(shape, way.kernel): (name, way.kernel) for way in WAYS if not way.paged})
    todo, start = list(jobs.values()), time.perf_counter()
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            list(pool.map(compile_some, [todo[n::workers] for n in range(workers)]))
        print(f"compiled {len(todo)} times in {time.perf_counter() - start:.0f} s", flush=True)
    except Exception as error:
        print("compiled as they come:", error, flush=True)


def attempt(work: Callable[[], float], name: str) -> float:
    try:
        return work()
    except Exception as error:
        print("skipped:", name, str(error).splitlines()[0][:120], flush=True)
        return float("inf")


def check(cases: dict[str, Case], ways: list[Way]) -> list[Way]:
    """The ways that are right in every case: nearly as near to float32 as the present way."""
    right = list(ways)
    for name, case in cases.items():
        exact = case.exact()
        bound = 1.25 * case.error(PRESENT, exact) + 1e-3
        errors = {way: attempt(partial(case.error, way, exact), way.name) for way in right}
        for way, error in errors.items():
            if not error <= bound:
                print(f"wrong: {name}: {way.name}: {error:.2e}, bound {bound:.2e}", flush=True)
        right = [way for way in right if errors[way] <= bound]
    return right


def measure(cases: dict[str, Case], ways: list[Way], end: float) -> dict[str, dict[Way, float]]:
    found: dict[str, dict[Way, float]] = {name: {} for name in cases}
    for way in ways:
        if time.perf_counter() > end:
            print("out of time before", way.name, flush=True)
            break
        for name, case in cases.items():
            found[name][way] = attempt(partial(case.us, way), way.name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=36.0, help="after so many nothing more is begun")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    end = time.perf_counter() + options.seconds
    if options.workers:
        compile_all(options.workers)
    rate = copy_rate()
    cases = {name: Case(*CASES[name]) for name in options.cases}
    ways = check(cases, WAYS)
    print(f"{len(ways)} of {len(WAYS)} ways are right; {end - time.perf_counter():.0f} s left", flush=True)
    plans = {name: graph_us([case.plan] * 8) for name, case in cases.items()}
    found = measure(cases, ways, end)
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_bytes_per_s": rate}
    result["us"] = {
        name: {"floor": cases[name].bytes / rate * 1e6, "plan": plans[name]} | {way.name: us for way, us in times.items()}
        for name, times in found.items()
    }  # fmt: skip
    publish(result, options.out)
    for name, times in found.items():
        best = sorted((us, way) for way, us in times.items() if not way.paged)[:3]
        print(f"{name}: floor {result['us'][name]['floor']:.1f}, present {times.get(PRESENT, float('inf')):.1f}, plan {plans[name]:.1f} us")
        print("\n".join(f"    {us:.1f} {way.name}" for us, way in best))
    everywhere = [way for way in ways if not way.paged and all(way in times for times in found.values())]
    shares = {way: sum(times[way] / times[PRESENT] for times in found.values()) / len(found) for way in everywhere if PRESENT in ways}
    for way in sorted(shares, key=shares.__getitem__)[:3]:
        print(f"over all cases {shares[way]:.3f} of the present way: {way.name}")


if __name__ == "__main__":
    main()
