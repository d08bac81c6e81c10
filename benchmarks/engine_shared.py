"""What `engine_steps.py --parts shared` measures: decode steps whose rows share a prefix (the switch `cascade`), and caches in 8 bits.

Kernels are timed alone on one layer, for several sizes of groups and prefixes, by the number of programs, warps and loads ahead; then whole
decode steps of the engine with groups of 8 that share 1,024 tokens. Nothing is timed if a result is not right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from engine import seconds
from engine_shapes import WORDS

from turnwise.engines.base import Request, Sampling
from turnwise.engines.native import cascade_kernel
from turnwise.engines.native.cache_8bit import SCALE, views
from turnwise.engines.native.cascade import Group, Layout
from turnwise.engines.native.cascade_kernel import Shared, attend_cascade

CASES = ((128, 8, 1024, 128), (512, 8, 1024, 128), (128, 8, 1024, 1024), (128, 4, 512, 640), (128, 8, 256, 256), (64, 16, 2048, 128))
Times = Callable[[Callable[[], Any]], float]


def share(case: Any, group: int, tokens: int) -> Shared:
    """Lanes of a case in groups, each with the same first pages; the plan for them."""
    table, lanes, pages = case.tables.pages, len(case.slots), tokens // case.cache.shape[3]
    layout = Layout.of(lanes, case.shape.group)
    if layout is None:
        raise SystemExit(f"{case.shape.group} query heads per key head: too many for a cascade")
    groups = [Group(tuple(range(first, min(first + group, lanes))), pages) for first in range(0, lanes, group)]
    for one in groups:
        table[list(one.lanes), :pages] = table[one.lanes[0], :pages].clone()
    shared, blocks = (torch.from_numpy(piece).cuda() for piece in layout.write(groups))
    return Shared(shared, blocks.view(layout.blocks, -1))


def attend(case: Any, plan: Shared, merge: bool = True) -> torch.Tensor:
    arrivals = case.arrivals if merge else None
    return attend_cascade(case.qkv, case.cache, case.layer, case.tables, case.slots, case.positions, case.shape, arrivals, plan)


def in_8_bits(case: Any, shifted: bool) -> None:
    """The case with a random cache in 8 bits; `shifted`: with keys that are relative to something."""
    case.cache = torch.zeros(*case.cache.shape[:-1], case.shape.head_dim + SCALE, dtype=torch.int8, device="cuda")
    for packed in views(case.cache, case.qkv.dtype):
        packed.numbers.copy_(torch.randint(-127, 128, packed.numbers.shape, device="cuda", dtype=torch.int8))
        packed.scales.fill_(0.01)
    positions = case.tables.pages.shape[1] * case.cache.shape[3]
    shift = torch.randn(positions, case.shape.kv_heads, case.shape.head_dim, device="cuda", dtype=case.qkv.dtype)
    case.layer = replace(case.layer, shift=shift if shifted else None)


def check(make: Callable[..., Any]) -> dict[str, Any]:
    """The same result with a plan as without, over and over, for caches of every kind. `make`: an `Attention` of engine_steps.py."""
    found: dict[str, Any] = {}
    for kind in ("model", "8bit", "8bit, relative"):
        case = make(24, 700, False)
        if kind != "model":
            in_8_bits(case, "relative" in kind)
        plan, worst = share(case, 8, 512), 0.0
        plain = case.attend(False).float()
        for splits in (1, 8):
            with patch.object(cascade_kernel, "MOST_SPLITS", splits):
                for merge in (False, True, True, True):
                    worst = max(worst, ((attend(case, plan, merge).float() - plain).norm() / plain.norm()).item())
        found[kind] = {"right": worst < 1e-2 and not case.arrivals.any().item(), "worst": worst}
    return {"right": all(one["right"] for one in found.values()), **found}


def kernels(make: Callable[..., Any], times: Times) -> dict[str, Any]:
    """Microseconds of decode attention in one layer: as it is, with a plan (the fastest first), and with caches in 8 bits."""
    found: dict[str, Any] = {}
    for lanes, group, common, own in CASES:
        case = make(lanes, common + own, False)
        plan, ways = share(case, group, common), {}
        for most in (4, 8, 16):
            for warps, stages in ((4, 3), (4, 4), (8, 3)):
                with patch.multiple(cascade_kernel, MOST_SPLITS=most, WARPS=warps, STAGES=stages):
                    ways[f"up to {most} splits, {warps} warps, {stages} stages"] = times(lambda case=case, plan=plan: attend(case, plan))
        best = dict(sorted(ways.items(), key=lambda one: one[1])[:4])
        found[f"{lanes} lanes, groups of {group}, {common} + {own}"] = {"as it is": times(lambda case=case: case.attend(True)), **best}
        del case, plan
        torch.cuda.empty_cache()
    for lanes, context in ((128, 1152), (512, 1152)):
        for kind in ("model", "8bit", "8bit, relative"):
            case = make(lanes, context, False)
            if kind != "model":
                in_8_bits(case, "relative" in kind)
            found[f"{lanes} lanes at {context}, cache: {kind}"] = times(lambda case=case: case.attend(True))
            del case
            torch.cuda.empty_cache()
    return found


def decode_groups(bench: Any, lanes: int, group: int, common: int, own: int, steps: int = 64) -> float:
    """Milliseconds of a decode step of rows in groups with a common prompt, on average at `common` + `own` tokens."""
    rng = random.Random(3)
    starts = [[rng.randrange(WORDS) for _ in range(common)] for _ in range(lanes // group)]
    prompts = [[*starts[n // group], *(rng.randrange(WORDS) for _ in range(own - steps // 2 - 2))] for n in range(lanes)]
    for _ in range(2):  # the first time compiles and records
        bench.engine.refresh()
        bench.engine.submit([Request(n, ids, Sampling(max_tokens=steps + 8), seed=n, sequence=n) for n, ids in enumerate(prompts)])
        while len(bench.engine._rows) < lanes or any(row.todo > 1 for row in bench.engine._rows):
            bench.engine._advance()
        bench.engine._advance()
        took = seconds(lambda: [bench.engine._advance() for _ in range(steps)]) / steps
        bench.drain()
    return took * 1e3


def engine(bench: Any) -> dict[str, Any]:
    """Decode steps of the engine with and without the switch, and with a cache in 8 bits."""
    found: dict[str, Any] = {}
    for lanes in (128, 512):
        for name, way, settings in (
            ("as it is", {}, {}),
            ("cascade", {"cascade": True}, {}),
            ("8 bits", {}, {"cache_dtype": "8bit"}),
            ("8 bits, cascade", {"cascade": True}, {"cache_dtype": "8bit"}),
        ):
            bench.use(way, lanes, **settings)
            found[f"{lanes} rows, groups of 8, 1,024 + 128, {name}"] = decode_groups(bench, lanes, 8, 1024, 128)
            if "cascade" not in name:
                found[f"{lanes} rows at 1,152, {name}"] = bench.decode(lanes)["ms_per_step"]
    return found
