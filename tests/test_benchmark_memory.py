"""benchmarks/memory.py, which is made for a GPU, runs from end to end on a CPU."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from fourbit_double import fourbit

from turnwise.config.loading import load_file

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
    words, out = ["--iterations", "1", "--turns", "2", "--response", "4", "--layers", "1", f"--wait={turn}"], tmp_path / "result.json"
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(bench, "write_text_atomically", lambda path, text: written.append({"path": path, **json.loads(text)}))
    bench.main(["--case", case, "--tiny", *words, f"--out={out}"])
    found = json.loads(capsys.readouterr().out)
    assert [(one["path"], one["iterations"]) for one in written] == [(out, 1), (out, 1)], "after the iteration, and at the end"
    assert found["finished"] and found["retries"] == 0 and found["cases_together"] == 1
    assert found["not_as_in_the_recipe"]["env.max_turns"] == {"recipe": 50, "here": 2} and "learner.lr" not in found["not_as_in_the_recipe"]
    assert len(found["seconds_by_iteration"]) == found["optimiser_steps"] == 1
    assert found["iterations"] == 1 and found["limit_gb"] == 24 and found["measured_peak_gb"] is None
    assert ("adapters" in found["predicted_terms_gb"]) == ("lora" in case)
    assert 0 < found["predicted_in_use_gb"] <= found["predicted_peak_gb"] < 24
    assert found["sampled_tokens_per_s"] > 0 and found["learned_tokens_per_s"] > 0


def test_the_cases_are_predicted_to_fit(bench: Any) -> None:
    for name, case in bench.CASES.items():
        config = bench.recipe(case, Namespace(groups=0, turns=10, response=64, iterations=10, tiny=False, games=False))
        fit = bench.find(config, int(case.limit * 10**9), case.shape).fit
        assert fit.fits and fit.peak <= case.limit * 10**9, name


def test_an_unknown_case_is_an_error_that_names_the_known_ones(bench: Any) -> None:
    assert bench.cases_of("all") == list(bench.CASES) and bench.cases_of("7b-lora,0.5b") == ["7b-lora", "0.5b"]
    with pytest.raises(SystemExit, match=r"no case '3b'.*7b-lora-4bit"):
        bench.cases_of("0.5b,3b")
