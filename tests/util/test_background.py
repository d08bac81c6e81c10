"""What the host does beside an update: the batch is written, the next games are loaded; errors are heard, and no result changes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, shared_folder

import turnwise as tw
from turnwise.data.tasks import Task
from turnwise.envs import registry
from turnwise.envs.household import alfworld
from turnwise.envs.pool import Pool
from turnwise.learn.learner import Learner
from turnwise.methods.planning import TaskSlots
from turnwise.runs.folder import Run
from turnwise.util.background import Pause, background
from turnwise.util.errors import TurnwiseError


def test_work_goes_on_beside_the_block_and_is_done_at_its_end() -> None:
    begun, told, done = threading.Event(), threading.Event(), list[str]()

    def work(pause: Pause) -> None:
        begun.set()
        told.wait(60)
        done.append("first")

    with background(work, lambda pause: done.append("second")):
        assert begun.wait(60) and not done
        told.set()
    assert done == ["first", "second"]


def test_waiting_ends_the_pauses_and_raises_the_error() -> None:
    def work(pause: Pause) -> None:
        while not pause():
            pass
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"), background(work) as wait:
        wait()
    with pytest.raises(ValueError, match="of the work"), background(work):
        pass
    with pytest.raises(KeyError, match="of the block"), background(work):
        raise KeyError("of the block")


def train(folder: Path) -> Any:
    tiny = {"layers": 1, "hidden": 16, "heads": 1, "max_length": 128, "vocabulary_tasks": 2}
    settings: dict[str, Any] = {
        "env.name": f"{ROOT / 'tests' / 'support' / 'bandit_env.py'}:Bandit",
        "env.tasks": 8,
        "iterations": 3,
        "device": "cpu",
        "agent.prompt": "action",
        "agent.show_actions": False,
        "agent.max_prompt_tokens": 96,
        "agent.context": "full",
        **{f"model.tiny.{name}": value for name, value in tiny.items()},
        "engine.max_tokens": 3,
        "collect.groups": 2,
        "collect.group_size": 2,
        "eval.n": 1,
        "run.checkpoint_every": 0,
        "run.keep_rollouts": 2,
    }
    return tw.train(**settings, out=str(folder), name="try")


def test_a_batch_is_on_disk_before_its_iteration_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, kept = Run.log, dict[int, list[int]]()

    def logged(run: Run, metrics: dict[str, Any]) -> None:
        kept[int(metrics["iteration"])] = run.iterations_of("rollouts")
        assert all(run.trajectories(number) and run.tokens(number) for number in kept[int(metrics["iteration"])])
        log(run, metrics)

    monkeypatch.setattr(Run, "log", logged)
    train(tmp_path)
    assert kept == {0: [], 1: [1], 2: [1, 2], 3: [2, 3]}


def test_a_batch_that_cannot_be_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **options: Any) -> None:
        raise TurnwiseError("the disk is full")

    monkeypatch.setattr(Run, "save_batch", full)
    with pytest.raises(TurnwiseError, match="the disk is full"):
        train(tmp_path)


def test_an_update_that_fails_is_what_is_heard_of_and_loses_no_older_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update, left = Learner.update, iter(range(3))

    def fails(*given: Any, **options: Any) -> Any:
        if next(left) == 2:
            raise TurnwiseError("no third update")
        return update(*given, **options)

    monkeypatch.setattr(Learner, "update", fails)
    with pytest.raises(TurnwiseError, match="no third update"):
        train(tmp_path)
    assert Run.open(tmp_path / "try").iterations_of("rollouts") == [1, 2, 3]


def test_the_tasks_that_come_are_those_of_the_next_groups() -> None:
    slots = TaskSlots(registry.tasks("numberline", "train")[:5], 3, 2)
    for _ in range(4):
        coming, used = slots.coming(3), slots.used
        assert slots.used == used
        assert [start.task for start in slots.groups(3)][::2] == coming


def test_a_game_that_was_loaded_ahead_is_the_same() -> None:
    data = str(shared_folder("alfworld"))
    tasks = list(registry.tasks("alfworld", "valid_seen", data=data))[:3]
    with Pool("alfworld", 2, options={"data": data}) as pool:
        pool.load_ahead(tasks[1])  # nothing was played yet: nothing to do
        pool.reset(0, tasks[0])
        plain = pool.reset(1, tasks[1])
        alfworld._world.cache_clear()
        pool.load_ahead(tasks[1])
        pool.load_ahead(Task("train/no/game", "train"))  # an error belongs to the reset
        assert pool.reset(1, tasks[1]) == plain and alfworld._world.cache_info().misses == 1
        assert pool.reset(0, Task("train/no/game", "train")).fault is not None
