"""TextWorld-Express on the real package: eight games, one Java process, killed, hanging and orphaned processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from needing import ready
from processes import gone, kill, orphans, runs

from turnwise.data.tasks import Task
from turnwise.util.errors import TurnwiseError
from turnwise_envs.shared.java import JavaLost
from turnwise_envs.textworld.express import FOLDS, GAMES, SEEDS, TextWorldExpressEnv

ready("textworld-express")


@pytest.fixture(scope="module")
def kept() -> Iterator[TextWorldExpressEnv]:
    """An environment that lives as long as the module, so that Java is started once."""
    made = TextWorldExpressEnv("coin")
    made.reset(made.tasks("train")[0])
    yield made
    made.close()


@pytest.fixture
def env(kept: TextWorldExpressEnv) -> Iterator[TextWorldExpressEnv]:
    made = TextWorldExpressEnv()
    yield made
    made.close()


def test_the_package_s_solution_wins_every_game_of_every_split(env: TextWorldExpressEnv) -> None:
    for split in FOLDS:
        for task in env.tasks(split, n=len(GAMES)):
            env.reset(task)
            ends = [env.step(action) for action in env.expert(task)]
            assert ends[-1].success and ends[-1].done and sum(end.reward for end in ends) == pytest.approx(1.0), task.id


def test_a_solution_that_is_too_long_is_replaced_by_one_that_fits(env: TextWorldExpressEnv) -> None:
    task = Task("cookingworld/10469", "valid", {"game": "cookingworld", "seed": 10_469})  # the player's first solution has 118 actions
    env.reset(task)
    plan = env.expert(task)
    assert len(plan) <= env.max_turns
    assert [env.step(action) for action in plan][-1].success


def test_the_splits_are_the_folds_of_the_package(kept: TextWorldExpressEnv) -> None:
    assert kept._java is not None
    for split, method in {"train": "getSeedsTrain", "valid": "getSeedsDev", "test": "getSeedsTest"}.items():
        seeds = kept._java.call(kept._java.call(kept._server, method), "toString")
        tasks = [task.data["seed"] for task in kept.tasks(split)]
        assert seeds == str(tasks) and len(tasks) == SEEDS


def test_settings_of_a_game_are_used_and_checked(kept: TextWorldExpressEnv) -> None:
    small = TextWorldExpressEnv("coin", {"numLocations": 2, "includeDoors": 0})
    assert "door" not in small.reset(small.tasks("train")[0]).text
    for wrong, words in (({"numLocation": 2}, "numLocations"), ({"numLocations": "2"}, "are integers")):
        broken: Any = wrong
        with pytest.raises(TurnwiseError, match=words):
            TextWorldExpressEnv("coin", broken).reset(small.tasks("train")[0])
    small.close()


def test_a_killed_process_ends_one_attempt_with_a_reason_and_the_others_go_on() -> None:
    first, second = (TextWorldExpressEnv("twc", heap_mb=300) for _ in range(2))
    task = first.tasks("train")[0]
    plan = first.expert(task)
    first.reset(task)
    second.reset(task)
    second.step(plan[0])
    assert first._java is not None and first._java is second._java
    old = first._java.process_id
    kill(old)
    with pytest.raises(JavaLost, match=r"Java process died \(killed by signal 9\)"):
        first.step(plan[0])
    ends = [second.step(action) for action in plan[1:]]
    assert ends[-1].success
    first.reset(task)
    assert [first.step(action).success for action in plan][-1] and first._java.process_id != old and gone(old)
    new = first._java.process_id
    first.close()
    assert runs(new)
    second.close()
    assert gone(new)


def test_a_process_that_hangs_is_ended_after_the_time_limit() -> None:
    env = TextWorldExpressEnv("coin", seconds=0.5, heap_mb=301)
    task = env.tasks("train")[0]
    env._seconds = 60.0
    env.reset(task)
    assert env._java is not None
    env._java.seconds, old = 0.5, env._java.process_id
    os.kill(old, signal.SIGSTOP)
    with pytest.raises(JavaLost, match=r"no answer within 0\.5 seconds"):
        env.step("look around")
    assert gone(old)
    assert env.reset(task).text
    env.close()


def test_no_java_process_outlives_a_killed_python_process() -> None:
    assert gone(*orphans("textworld-express", "env._java.process_id", games="coin"))
