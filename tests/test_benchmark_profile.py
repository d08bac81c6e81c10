"""The count behind docs/performance.md, and its measurement with a tiny model on a CPU."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
RATES = {"matmul_flop_per_s": 8e14, "copy_bytes_per_s": 4e12}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("learner_profile")
    for name in ("learner_profile", "iteration", "results"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("context", ["window", "full"])
def test_the_counted_floor_is_that_of_a_whole_iteration(bench: Any, context: str) -> None:
    shape = bench.Shape(context=context)
    iteration = importlib.import_module("iteration")
    given = SimpleNamespace(shape=shape, rates=RATES, _rollout_floor=lambda *_: 0.0)
    floors = iteration.Bench.floors.func(given)
    for found in bench.counted(shape, 25, RATES).values():
        assert found["floor"] == pytest.approx(floors["update"], rel=0.01)
        assert found["floor"] < found["total"] == pytest.approx(sum(found["seconds"].values()), abs=0.02)


def test_every_variant_is_measured_and_switched_off_again(bench: Any) -> None:
    before = bench.Update._look_ahead, bench.attention.runs_of
    shape = bench.Shape(**{**bench.TINY.__dict__, "context": "full"})
    found = bench.measured(shape, 1, RATES, repeats=1)
    assert set(found["variants"]) == {"all", "all again", *bench.VARIANTS}
    assert len(found["products"]) == 5 * 4
    assert found["profile"]["kernels"] and found["profile"]["launches"] >= sum(own["count"] for own in found["profile"]["kernels"])
    assert found["tokens"] == 2 * shape.longest
    assert (bench.Update._look_ahead, bench.attention.runs_of) == before


def test_kernels_are_told_apart_by_their_names(bench: Any) -> None:
    names = {
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop": "attention",
        "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_TNT": "products",
        "_swiglu_backward": "activation",
        "_slopes": "logits",
        "void at::native::vectorized_gather_kernel<16, long>": "copies",
        "Memcpy HtoD (Pinned -> Device)": "copies",
        "void at::native::FusedAdamMathFunctor": "optimiser",
    }
    assert {name: bench.kind_of(name) for name in names} == names
