"""What the profile of prompts counts, and its measurement with a tiny model on a CPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("prompt_profile")
    for name in ("prompt_profile", "engine_shapes", "results"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("own", ["_gated", "gate_tiles", ""])
def test_products_without_names_are_told_by_their_order(bench: Any, own: str) -> None:
    middle = [own] if own else ["nvjet_sm90_tst", "_gate_mul"]
    reduced = ["nvjet_sm90_splitK", "void cublasLt::splitKreduce_kernel"]
    layer = ["_add_norm", "nvjet_sm90_bias", "_rotate", "_prompt", *reduced, "_add_norm", *middle, "nvjet_sm90_tst"]
    kinds = ["norms", "qkv", "rotation", "attention", "out", "out", "norms", *(["gate, up"] if own else ["gate, up", "activation"]), "down"]
    names = ["Memcpy HtoD (Pinned -> Device)", "void at::native::vectorized_gather_kernel", *layer, *layer, "_add_norm", "nvjet", "_draw"]
    found = bench.kinds_of([*names, *layer])
    assert found == ["copies", "other", *kinds, *kinds, "norms", "output layer", "draw", *kinds]


def test_time_without_a_kernel_is_counted_once(bench: Any) -> None:
    assert bench.busy_and_gaps([(2.0, 5.0), (3.0, 4.0), (4.5, 6.0), (8.0, 9.0)]) == (5.0, 2.0)
    assert bench.busy_and_gaps([]) == (0.0, 0.0)


def test_a_pass_is_profiled_on_a_cpu(bench: Any) -> None:
    prompts = bench.Prompts("tiny", "cpu")
    prompts.use(64)
    found = prompts.kinds(2, 40)
    assert found["wall ms"] > 0 and "aten::mm" in found["ms"]
    assert set(prompts.host(2, 40)) == {"refresh", "submit", "plan and launch"} and not prompts.engine.pending
