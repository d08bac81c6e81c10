"""CONTRIBUTING.md is followed literally: its files are written, its recipe lines are put into a recipe, and the recipe is trained."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import in_one_process, same
from conftest import ROOT
from safetensors.torch import load_file
from train_cases import TINY

import turnwise as tw
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PAIRS = re.findall(r"```python\n# file: (\w+\.py)\n(.*?)```\n\n```toml\n(.*?)```", TEXT, re.DOTALL)
FILES = {name: (code, tomllib.loads(recipe)) for name, code, recipe in PAIRS}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted keys; lists and the tables of further models stay as they are."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and prefix + key != "models" else {f"{prefix}{key}": value}
    return found


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train once with each file, and give the run."""
    runs: dict[str, Run] = {}

    def run_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Run:
        if name not in runs:
            folder: Path = tmp_path_factory.mktemp(name.removesuffix(".py"))
            code, settings = FILES[name]
            (folder / name).write_text(f"# file: {name}\n{code}")
            monkeypatch.chdir(folder)
            changes = {**TINY, "iterations": 2, "out": str(folder), "name": "try", **flat(settings)}
            runs[name] = Run.open(tw.train(quiet=True, **changes).folder)
        return runs[name]

    return run_of


def test_every_kind_of_the_table_has_its_block() -> None:
    assert set(FILES) == {
        f"my_{kind}.py"
        for kind in ("method", "credit", "objective", "plan", "signal", "schedule", "model", "reward", "env", "engine", "source", "tracker")
    }


@pytest.mark.parametrize("name", FILES)
def test_a_run_trains_with_the_file(name: str, batches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = batches(name, monkeypatch)
    batch, last = stored_batch(run, 2), run.metrics()[-1]
    did = {
        "my_method.py": lambda: (batch.column("turn.advantage") == batch.rollouts.spread("trajectory.return", "turn") - 0.5).all(),
        "my_credit.py": lambda: (batch.column("turn.advantage") == 0.5 * batch.rollouts.spread("trajectory.return", "turn")).all(),
        "my_objective.py": lambda: "learner/policy_loss" in last,
        "my_plan.py": lambda: last["collect/repeated"] >= 0,
        "my_signal.py": lambda: batch.column("turn.surprise").max() > 0,
        "my_schedule.py": lambda: last["learner/steps"] == batch.rollouts.t.max() + 1,
        "my_model.py": lambda: last["model/judge/loss"] >= 0 and any(run.checkpoints.rglob("model_judge.safetensors")),
        "my_reward.py": lambda: last["collect/rewards/short"] < 0,
        "my_engine.py": lambda: last["learner/engine_gap_max"] < 1e-4,
        "my_source.py": lambda: last["collect/left_out"] >= 0 and max(len(t.turns) for t in batch.trajectories) <= 3,
        "my_env.py": lambda: "Say " in batch.trajectories[0].turns[0].observation,
        "my_tracker.py": lambda: [line.split()[0] for line in (run.folder / "diary.txt").read_text().splitlines()] == ["0", "1", "2"],
    }[name]
    assert did()


def test_a_source_and_an_engine_of_ones_own_give_the_same_weights_on_a_cluster(
    batches: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_one_process(monkeypatch)
    for name in ("my_source.py", "my_engine.py"):
        alone = batches(name, monkeypatch)
        code, settings = FILES[name]
        (tmp_path / name).write_text(f"# file: {name}\n{code}")
        monkeypatch.chdir(tmp_path)
        changes = {**TINY, "iterations": 2, "out": str(tmp_path), "name": name, "cluster.engines": 1, **flat(settings)}
        there = Run.open(tw.train(quiet=True, **changes).folder)
        assert same(*(load_file(run.model / "model.safetensors") for run in (alone, there)))
