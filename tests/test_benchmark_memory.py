"""benchmarks/memory.py, which is made for a GPU, runs from end to end on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ROOT
from fourbit_double import fourbit

from turnwise.config.loading import load_file
from turnwise.engines.native import supports
from turnwise.learn.footprint import OUTSIDE

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


class Card:
    """What the benchmark asks torch about a GPU. `outside`: bytes that are taken on it outside torch."""

    total, reserved, outside = 141 * 10**9, 10 * 10**9, 8 * 10**8

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fractions: list[float] = []
        answers: dict[str, Any] = {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "mem_get_info": lambda: (self.total - self.reserved - self.outside, self.total),
            "memory_reserved": lambda: self.reserved,
            "max_memory_allocated": lambda: 0,
            "max_memory_reserved": lambda: 0,
            "memory_stats": lambda: {"num_ooms": 1, "num_alloc_retries": 2},
            "get_device_name": lambda: "a card",
            "get_device_properties": lambda number: SimpleNamespace(total_memory=self.total),
            "set_per_process_memory_fraction": self.fractions.append,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)


def test_the_limit_leaves_room_for_what_is_outside_torch(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case, card = bench.CASES["0.5b"], Card(monkeypatch)
    config = bench.recipe(case, Namespace(groups=0, turns=2, response=32, iterations=10, tiny=False, games=False))
    found = bench.find(config, 12 * 10**9, case.shape)
    bench.limit_memory(found)
    (fraction,) = card.fractions
    outside = sum(term.most for term in found.fit.terms if term.name in OUTSIDE and "gaps" not in term.name)
    assert fraction * card.total == pytest.approx(12 * 10**9 - outside) and outside > 0.9 * 10**9


def test_what_is_outside_torch_is_seen_before_recorded_steps_are_released(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    card, slept = Card(monkeypatch), list[int]()
    engine = SimpleNamespace(sleep=lambda: slept.append(card.outside))
    watched = bench.Outside(engine)
    card.outside = 9 * 10**8
    engine.sleep()
    card.outside = 7 * 10**8
    assert slept == [9 * 10**8]
    assert watched.found() == {"outside_torch_gb": 0.9, "allocator_retries": 2, "allocator_ooms": 1}


def test_the_memory_of_all_iterations_is_counted_and_rates_leave_out_the_first(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Card(monkeypatch)
    times = {"time/iteration": 2.0, "time/collect": 0.5, "time/update": 1.0, "learner/steps": 1}
    tokens = {"collect/response_tokens": 100, "learner/tokens_forward": 900}
    rows = [
        {**times, **tokens, "time/iteration": seconds, "learner/memory_peak_gib": peak, "learner/memory_held_gib": peak + 1}
        for seconds, peak in ((30.0, 8.0), (2.0, 9.0), (2.0, 7.0))
    ]
    found = bench.measured(rows)
    assert (found["sampled_tokens_per_s"], found["learned_tokens_per_s"], found["tokens_per_s"]) == (200.0, 900.0, 500.0)
    assert found["measured_peak_gb"] == round(9 * 2**30 / 1e9, 2) and found["measured_held_gb"] == round(10 * 2**30 / 1e9, 2)
    assert found["iterations"] == 3 and found["seconds_per_iteration"] == 2.0


CHILD = """
import json, sys, time
from pathlib import Path
name, out, wait, end = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
while wait and not Path(wait).exists():
    time.sleep(0.01)
out.write_text(json.dumps({"case": name, "iterations": 3, "seconds": wait and float(Path(wait).read_text())}))
sys.exit(end)
"""


def test_cases_run_one_after_another_and_one_that_fails_keeps_what_it_had(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns: list[str] = []

    def started(name: str, folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
        wait = next((word.partition("=")[2] for word in words if word.startswith("--wait=")), "")
        out = next((word.partition("=")[2] for word in words if word.startswith("--out=")), f"{folder / name}.json")
        turns.append(f"{name}{' waits' if wait else ''}")
        return subprocess.Popen([sys.executable, "-c", CHILD, name, out, wait, "3" if name == "1.5b" and wait else "0"])

    monkeypatch.setattr(bench, "started", started)
    out = tmp_path / "all.json"
    bench.main(["--cases", "0.5b,1.5b", "--seconds", "100", f"--out={out}"])
    first, second = json.loads(out.read_text())
    assert turns == ["0.5b waits", "1.5b waits", "0.5b", "1.5b"], "cases are prepared while others are rehearsed"
    assert first["case"] == "0.5b" and first["rehearsal"] == 0 and "failed" not in first
    assert second["case"] == "1.5b" and second["failed"] == 3 and second["iterations"] == 3
    assert 100 - bench.LEAST - 30 < first["seconds"] < 100 - bench.LEAST < second["seconds"] < 100, "time is left for the second"
    assert json.loads(capsys.readouterr().out) == [first, second]


def test_an_unknown_case_is_an_error_that_names_the_known_ones(bench: Any) -> None:
    assert bench.cases_of("all") == list(bench.CASES) and bench.cases_of("7b-lora,0.5b") == ["7b-lora", "0.5b"]
    with pytest.raises(SystemExit, match=r"no case '3b'.*7b-lora-4bit"):
        bench.cases_of("0.5b,3b")


def test_what_differs_from_the_recipe_is_named_with_both_values(bench: Any) -> None:
    options = Namespace(groups=0, turns=2, response=32, iterations=10, tiny=False, games=False)
    found = bench.differences(bench.CASES["1.5b"], options)
    assert found["collect.groups"] == {"recipe": 16, "here": 3} and found["engine.max_tokens"] == {"recipe": 512, "here": 32}
    assert found["env.name"] == {"recipe": "alfworld", "here": "household"} and found["weights"] == "random"
    assert not {key for key in found if key.startswith(("objective", "credit", "agent", "learner.lr", "learner.minibatch"))}


def test_random_weights_have_the_shape_and_are_finite(bench: Any) -> None:
    assert bench.random_model(bench.TINY, device="meta").lm_head.weight.is_meta, "weights are made where they will be"
    model = bench.random_model(bench.TINY)
    first, last = (model.model.layers[number].mlp.up_proj.weight for number in (0, -1))
    assert first.data_ptr() != last.data_ptr(), "layers that stay on a CPU are trained apart"
    assert supports(model) is None, "the native engine takes it"
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(bench.TINY.parameters, rel=0.01)
    assert all(bool(weight.isfinite().all()) and float(weight.detach().abs().max()) < 10 for weight in model.parameters())
