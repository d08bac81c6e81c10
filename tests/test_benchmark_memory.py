"""benchmarks/memory.py, which is made for a GPU, runs from end to end on a CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from fourbit_double import fourbit

from turnwise.config.loading import load_file
from turnwise.engines.native import supports

__all__ = ["fourbit"]  # a fixture


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return load_file(ROOT / "benchmarks" / "memory.py")
    finally:
        sys.path.pop(0)


@pytest.mark.usefixtures("fourbit")
@pytest.mark.parametrize("case", ["1.5b", "7b-lora-4bit"])
def test_a_case_runs_from_end_to_end_with_a_tiny_shape(
    bench: Any, case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = tmp_path / "turn"
    turn.write_text("60.0")
    monkeypatch.setattr(bench.loop, "save", None)  # it is put aside, so that no checkpoint is written
    bench.main(["--case", case, "--tiny", "--iterations", "1", "--turns", "2", "--response", "4", "--layers", "1", f"--wait={turn}"])
    found = json.loads(capsys.readouterr().out)
    assert found["not_as_in_the_recipe"]["env.max_turns"] == {"recipe": 50, "here": 2} and "learner.lr" not in found["not_as_in_the_recipe"]
    assert len(found["seconds_by_iteration"]) == found["optimiser_steps"] == 1
    assert found["iterations"] == 1 and found["limit_gb"] == 24 and found["measured_peak_gb"] is None
    assert ("adapters" in found["predicted_terms_gb"]) == ("lora" in case)
    assert 0 < found["predicted_in_use_gb"] <= found["predicted_peak_gb"] < 24
    assert found["sampled_tokens_per_s"] > 0 and found["learned_tokens_per_s"] > 0


def test_the_cases_are_predicted_to_fit(bench: Any) -> None:
    from argparse import Namespace

    for name, case in bench.CASES.items():
        config = bench.recipe(case, Namespace(groups=0, turns=10, response=64, iterations=10, tiny=False))
        fit = bench.find(config, int(case.limit * 10**9), case.shape).fit
        assert fit.fits and fit.peak <= case.limit * 10**9, name


def test_what_differs_from_the_recipe_is_named_with_both_values(bench: Any) -> None:
    from argparse import Namespace

    options = Namespace(groups=0, turns=2, response=32, iterations=10, tiny=False)
    found = bench.differences(bench.CASES["1.5b"], options)
    assert found["collect.groups"] == {"recipe": 16, "here": 3} and found["engine.max_tokens"] == {"recipe": 512, "here": 32}
    assert found["env.name"] == {"recipe": "alfworld", "here": "household"} and found["weights"] == "random"
    assert not {key for key in found if key.startswith(("objective", "credit", "agent", "learner.lr", "learner.minibatch"))}


def test_random_weights_have_the_shape_and_are_finite(bench: Any) -> None:
    model = bench.random_model(bench.TINY)
    first, last = (model.model.layers[number].mlp.up_proj.weight for number in (0, -1))
    assert first.data_ptr() != last.data_ptr(), "layers that stay on a CPU are trained apart"
    assert supports(model) is None, "the native engine takes it"
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(bench.TINY.parameters, rel=0.01)
    assert all(bool(weight.isfinite().all()) and float(weight.detach().abs().max()) < 10 for weight in model.parameters())
