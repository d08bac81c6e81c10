"""The ALFWorld environment: its contract, what it does with any command, anchors, and how it finds its data."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import shared_folder

from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver
from turnwise.envs.household.alfworld import AlfworldEnv
from turnwise.envs.household.house import TASK_TYPES
from turnwise.util.errors import TurnwiseError


@pytest.fixture(scope="module")
def env() -> AlfworldEnv:
    return AlfworldEnv(shared_folder("alfworld"))


@pytest.fixture(scope="module")
def task(env: AlfworldEnv) -> Task:
    return env.tasks("valid_seen")[0]


def test_task_ids_are_sorted_and_name_split_task_and_trial(env: AlfworldEnv) -> None:
    tasks = env.tasks("valid_seen")
    ids = [task.id for task in tasks]
    assert len(ids) == 140 and ids == sorted(ids)
    assert all(len(name.split("/")) == 3 and name.startswith("valid_seen/") for name in ids)
    assert {task.data["task_type"] for task in tasks} == set(TASK_TYPES)
    assert all(task.id.split("/")[1].startswith(task.data["task_type"]) for task in tasks)


def test_splits_share_no_game(env: AlfworldEnv) -> None:
    train, valid = env.tasks("train"), env.tasks("valid_seen")
    assert len(train) == 3553
    assert not {task.data["game"] for task in train} & {task.data["game"] for task in valid}


def test_a_task_of_other_data_is_refused(env: AlfworldEnv, task: Task) -> None:
    with pytest.raises(TurnwiseError, match="content differs"):
        env.reset(Task(task.id, task.split, {"game": "0" * 32}))


def test_unknown_task_and_split_name_the_nearest(env: AlfworldEnv, task: Task) -> None:
    with pytest.raises(TurnwiseError, match=f"Did you mean '{task.id}'"):
        env.reset(Task(task.id[:-1] + "x", "valid_seen"))
    with pytest.raises(TurnwiseError, match="Did you mean 'valid_seen'"):
        env.tasks("valid_sen")


def test_step_before_reset_and_after_the_end_raises(task: Task) -> None:
    env = AlfworldEnv(shared_folder("alfworld"))
    with pytest.raises(EpisodeOver, match="before reset"):
        env.step("look")
    env.reset(task)
    moves = [env.step(command) for command in env.walkthrough(task)]
    assert [move.reward for move in moves] == [0.0] * (len(moves) - 1) + [1.0]
    assert moves[-1].done and moves[-1].success
    with pytest.raises(EpisodeOver, match="over"):
        env.step("look")
    assert env.reset(task).text == AlfworldEnv(shared_folder("alfworld")).reset(task).text


@pytest.mark.parametrize("command", [" look", "look\n", "\u00a0look\u3000", "\x1clook", "\tlook \r\n"])
def test_white_space_around_a_command_is_ignored(env: AlfworldEnv, task: Task, command: str) -> None:
    env.reset(task)
    assert env.step(command).observation.text.startswith("You are in the middle of a room.")


@pytest.mark.parametrize(
    "command", ["", "LOOK", "look.", "look\x00", "look\u200b", "go  to desk 1", "go to desk 99", "{r}", "\ud800", "ｌｏｏｋ", "undo"]
)
def test_a_command_that_does_not_fit_changes_nothing(env: AlfworldEnv, task: Task, command: str) -> None:
    first = env.reset(task)
    before = env.play.state.key()
    move = env.step(command)
    assert (move.observation.text, move.reward, move.done) == ("Nothing happens.", 0.0, False)
    assert move.observation.actions == first.actions and env.play.state.key() == before


def test_state_anchor_tells_states_apart_that_look_the_same(task: Task) -> None:
    env = AlfworldEnv(shared_folder("alfworld"), anchor="state")
    start = env.reset(task).anchor
    assert isinstance(start, bytes) and len(start) == 16
    nothing = env.step("dance").observation
    assert nothing.text == "Nothing happens." and nothing.anchor == start
    assert env.step("help").observation.anchor == start, "reading the help changes nothing that can be noticed"
    moved = env.step("go to desk 1").observation.anchor
    assert moved != start and env.step("dance").observation.anchor == moved
    env.step("go to drawer 3")
    assert env.step("go to desk 1").observation.anchor == moved, "the way to a state does not matter"
    assert env.step("use desklamp 1").observation.anchor != moved


def test_two_games_never_share_a_state_anchor(env: AlfworldEnv) -> None:
    env = AlfworldEnv(shared_folder("alfworld"), anchor="state")
    anchors = {env.reset(task).anchor for task in env.tasks("valid_seen")}
    assert len(anchors) == 140


def test_data_is_found_where_it_usually_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shared_folder("alfworld")
    monkeypatch.delenv("TURNWISE_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ALFWORLD_DATA", str(folder))
    assert AlfworldEnv().library.folder == folder
    monkeypatch.setenv("TURNWISE_DATA", str(folder.parent))
    monkeypatch.delenv("ALFWORLD_DATA")
    assert AlfworldEnv().library.folder == folder
