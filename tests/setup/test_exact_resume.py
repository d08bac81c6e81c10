"""A run that was killed, stopped or slowed down ends as one that was left alone: the same log, the same weights, the same files."""

from __future__ import annotations

import gzip
import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from safetensors.torch import load_file
from small_runs import Fuse
from train_cases import TINY, Impatient, without_times

import turnwise as tw
from turnwise.engines.native.cpu_runner import CpuRunner
from turnwise.learn import checkpoint
from turnwise.recipe.schema import Config
from turnwise.runs.folder import Run
from turnwise.setup.training import build_training

SLOW = f"{ROOT / 'tests' / 'support' / 'slow_env.py'}:Slow"
SCHEDULES: dict[str, dict[str, Any]] = {
    "full context, evaluated": {"eval.every": 1, "agent.context": "full", "run.checkpoint_every": 1},
    "window, evaluated now and then": {"eval.every": 2, "agent.context": "window", "run.checkpoint_every": 2},
    "full context, not evaluated": {"eval.every": 0, "agent.context": "full", "run.checkpoint_every": 3},
    "worker processes": {"eval.every": 2, "agent.context": "full", "run.checkpoint_every": 2, "env.workers": 2},
}


def settings(out: Path, **changes: Any) -> dict[str, Any]:
    own = {
        "env.name": SLOW,
        "env.options.seconds": 0.001,
        "agent.max_prompt_tokens": 120,
        "model.tiny.max_length": 160,
        "eval.n": 6,
        "engine.name": "native",
    }
    return {**TINY, **own, "out": str(out), "name": "try", "iterations": 3, **changes}


class Killed(BaseException):
    """As sudden as can be without ending the tests: nobody catches it."""


def kill() -> None:
    raise Killed


def left(folder: Path) -> dict[str, Any]:
    """What a run leaves, without the times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    warned = (folder / "warnings.jsonl").read_text() if (folder / "warnings.jsonl").exists() else ""
    evaluations = {path.name: json.loads(path.read_text()) for path in sorted((folder / "evals").glob("*.json"))}
    texts = {path.name: gzip.decompress(path.read_bytes()) for path in sorted((folder / "rollouts").glob("*.jsonl.gz"))}
    weights = {name: tensor.numpy().tobytes() for name, tensor in load_file(folder / "model" / "model.safetensors").items()}
    litter = [path.name for path in folder.rglob(".*")]
    return {"metrics": without_times(lines), "warnings": warned, "evals": evaluations, "texts": texts, "weights": weights, "litter": litter}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_that_is_killed_anywhere_and_resumed_leaves_what_one_that_was_not_leaves(tmp_path: Path, schedule: str) -> None:
    with Fuse(None, kill).watching() as whole:
        wanted = left(tw.train(reporter=whole, **settings(tmp_path / "whole", **SCHEDULES[schedule])).folder)
    chance = random.Random(schedule)
    at = chance.randrange(1, whole.count)
    with Fuse(at, kill).watching() as fuse, pytest.raises(Killed):
        tw.train(reporter=fuse, **settings(tmp_path, **SCHEDULES[schedule]))
    again = chance.randrange(1, whole.count - at + 2)  # once more, where it comes so far
    with Fuse(again, kill).watching() as fuse:
        try:
            tw.train(resume=tmp_path / "try", reporter=fuse)
        except Killed:
            tw.train(resume=tmp_path / "try")
    assert left(tmp_path / "try") == wanted, (at, again)


@pytest.mark.parametrize("context", ["full", "window"])
def test_collecting_computes_the_same_whether_or_not_an_evaluation_came_before(
    tmp_path: Path, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[list[int]] = []
    run_step = CpuRunner.run
    monkeypatch.setattr(CpuRunner, "run", lambda self, step: (steps.append(list(step.counts)), run_step(self, step))[1])
    found = []
    for evaluated in (False, True):
        training = build_training(Config.load(None, settings(tmp_path, **{"agent.context": context})))
        if evaluated:
            training.evaluate()
        steps.clear()
        [batch] = training.source.batches(training.plan, 1)
        found.append(([turn.logprobs for trajectory in batch.trajectories for turn in trajectory.turns], [*steps]))
        training.close()
    assert found[0] == found[1]


def test_worker_processes_that_answer_by_chance_give_the_same_weights_whenever_repeated(tmp_path: Path) -> None:
    changes = {"env.options.seconds": 0.005, "eval.every": 0, "iterations": 2, "collect.group_size": 8}
    one, two, three = (
        left(tw.train(**settings(tmp_path / str(number), **{**changes, "env.workers": workers})).folder)
        for number, workers in enumerate((2, 2, 3))
    )
    assert one == two == three


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_an_evaluation_keeps_the_rollouts_and_the_score(tmp_path: Path, number: signal.Signals) -> None:
    changes = {"eval.every": 1, "iterations": 2, "run.checkpoint_every": 2}
    wanted = left(tw.train(**settings(tmp_path / "whole", **changes)).folder)
    stopped = tw.train(reporter=Impatient("evaluation", 2, number), **settings(tmp_path, **changes))
    assert stopped.interrupted and Run.open(stopped.folder).iterations_of("rollouts") == [1]
    again = tw.train(resume=stopped.folder, reporter=Impatient("collecting", 1, number))
    assert again.interrupted and Run.open(stopped.folder).iterations_of("rollouts") == [1]
    found = checkpoint.latest_good(stopped.folder / "checkpoints")
    assert found is not None and found.step == 1 and found.score == again.metrics[1]["eval/success"]
    assert left(tw.train(resume=stopped.folder).folder) == wanted
