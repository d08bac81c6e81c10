"""Branches: a pool keeps and restores states in any number of workers, and an attempt arrives at a turn of another one or says why not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from branching_env import HalfRestorable, Unseeded, Walker
from processes import gone
from troubled_env import Troubled

from turnwise.collect.order import Answers
from turnwise.data.tasks import Task
from turnwise.envs import EpisodeOver, Observation
from turnwise.envs.check import check
from turnwise.envs.pool import Fault, Pool, Reset, Restore, Snapshot
from turnwise.envs.scripts import Arrived, Play, arrive, play_all, short
from turnwise.util.errors import TurnwiseError

WALKER = f"{Path(__file__).parents[1] / 'support/branching_env.py'}:Walker"
TASK = Task("a")


def walk(pool: Pool, slot: int, turns: int) -> list[str]:
    return [pool.step(slot, "walk").observation.text for _ in range(turns)]


def kept(pool: Pool, slot: int) -> bytes:
    state = pool.snapshot(slot).state
    assert state is not None
    return state


# The pool


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pool_keeps_a_state_and_starts_another_attempt_from_it(workers: int) -> None:
    with Pool(WALKER, 3, workers=workers) as pool:
        pool.reset(0, TASK, 7)
        walk(pool, 0, 3)
        before = pool.snapshot(0)
        assert before.state and before.fault is None and before.transition is None and not before.over
        expected = walk(pool, 0, 4)
        restored = pool.restore(1, TASK, 7, before.state)  # a slot that was never reset, in another worker
        assert restored.observation.actions == ("walk", "end") and not restored.over
        assert walk(pool, 1, 4) == expected
        assert pool.restore(0, TASK, 7, before.state).observation == restored.observation
        assert walk(pool, 0, 4) == expected
        with pytest.raises(TurnwiseError, match="result of a snapshot"):
            _ = before.observation


def test_snapshots_keep_their_place_in_the_order_of_answers() -> None:
    with Pool(WALKER, 3) as pool:
        answers = Answers(pool, ordered=True)
        answers.submit(2, Reset(TASK, 1))
        answers.submit(0, Reset(TASK, 1))
        answers.next(False, 3)
        answers.submit(2, Snapshot())
        answers.submit(0, "walk")
        first, second = answers.next(False, 3)
        assert (first.slot, second.slot) == (2, 0) and first.state
        answers.submit(1, Restore(TASK, 1, first.state))
        assert answers.next(False, 3)[0].observation.text == "place 0"


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_without_snapshots_says_so_and_plays_on(workers: int) -> None:
    with Pool(Troubled, 2, workers=workers) as pool:
        pool.reset(0, TASK, 1)
        result = pool.snapshot(0)
        assert result.state is None and result.fault is None and not result.over
        assert pool.step(0, "walk").fault is None
        refused = pool.restore(1, TASK, 1, b"state")
        assert refused.fault is Fault.ERROR and "Troubled has no restore(state)" in refused.message
        with pytest.raises(EpisodeOver, match="slot 1 has no running episode"):
            pool.step(1, "walk")
        assert pool.reset(1, TASK, 1).fault is None


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("trouble", "message"),
    [("raise", "ZeroDivisionError"), ("sys.exit", "SystemExit"), ("text", "Walker.snapshot() returned 'not bytes' (str), not bytes")],
)
def test_a_snapshot_that_fails_is_a_fault_of_its_slot_alone(workers: int, trouble: str, message: str) -> None:
    with Pool(WALKER, 2, workers=workers, options={"trouble": trouble}) as pool:
        pool.reset(0, Task("snapshot"), 1)
        pool.reset(1, TASK, 1)
        result = pool.snapshot(0)
        assert result.fault is Fault.ERROR and message in result.message and result.over
        with pytest.raises(EpisodeOver):
            pool.snapshot(0)
        assert kept(pool, 1)
        assert pool.reset(0, TASK, 1).fault is None


def test_a_worker_that_hangs_or_dies_over_a_state_costs_that_slot_alone() -> None:
    with Pool(WALKER, 2, workers=1, timeout=2.0, options={"trouble": "hang"}) as pool:
        pool.reset(0, Task("snapshot"), 1)
        pool.reset(1, Task("snapshot"), 2)
        pool.step(1, "walk")
        assert pool.snapshot(0).fault is Fault.TIMEOUT
        assert pool.step(1, "walk").fault is None
    with Pool(WALKER, 2, workers=1, options={"trouble": "kill"}) as pool:
        pool.reset(1, TASK, 2)
        state = b'["restore", 3, [3, [], null]]'
        assert "SIGKILL" in pool.restore(0, Task("restore"), 1, state).stop_reason
        assert pool.step(1, "walk").fault is None
        assert pool.reset(0, TASK, 1).fault is None


def test_a_restored_attempt_survives_the_loss_of_its_worker() -> None:
    with Pool(WALKER, 2) as pool:
        pool.reset(0, TASK, 7)
        walk(pool, 0, 3)
        state, expected = kept(pool, 0), walk(pool, 0, 5)
        middle = kept(pool, 0)
    with Pool(WALKER, 2, workers=1) as pool:
        pool.restore(0, TASK, 7, state)
        assert walk(pool, 0, 2) == expected[:2]
        pool.reset(1, TASK)
        assert "exit code 3" in pool.step(1, "exit").stop_reason
        assert walk(pool, 0, 3) == expected[2:]
        before = pool.pids[0]
        os.kill(before, signal.SIGKILL)
        assert gone(before)
        assert kept(pool, 0) == middle  # played again first, then kept


# Arriving


def record(env: Any, task: Task, seed: int, actions: Sequence[str]) -> list[Any]:
    """The anchors of an attempt: before each action, and after the last."""
    return [env.reset(task, seed).key, *(env.step(action).observation.key for action in actions)]


def came(factory: Any, plays: Iterable[Play[Arrived]], workers: int = 0) -> list[Arrived]:
    with Pool(factory, 2, workers=workers) as pool:
        return list(play_all(pool, plays))


ACTIONS = ("walk", "xyzzy", "walk", "walk")
ANCHORS = record(Walker(), TASK, 5, ACTIONS)


def test_what_went_wrong_on_the_way_is_told_with_its_turn() -> None:
    changed = [*ANCHORS[:2], "place -1", *ANCHORS[3:]]
    ended = [*record(Walker(), TASK, 5, ("walk", "end")), "place 9"]
    walker = Walker()
    record(walker, TASK, 5, ACTIONS[:2])
    plays = [
        arrive(TASK, 5, ACTIONS, changed),
        arrive(TASK, 5, ACTIONS, ANCHORS, walker.snapshot()),
        arrive(TASK, 5, ("walk", "end", "walk"), ended),
        arrive(TASK, 5, ("raise",), ANCHORS[:2]),
        arrive(Task("damaged"), 5, (), ANCHORS[:1]),
    ]
    arrived = came(Walker, plays)
    assert not any(way.ok for way in arrived)
    assert arrived[0].message == f"turn 2: the anchor is {short(ANCHORS[2])}, and was {short('place -1')}"
    assert arrived[0].result.observation.key == ANCHORS[2]
    assert arrived[1].message.startswith("turn 4: the anchor is ")
    assert arrived[2].message.startswith("turn 2: the attempt has ended here")
    assert arrived[3].message.startswith("turn 1: environment fault: ZeroDivisionError")
    assert arrived[4].message.startswith("turn 0: environment fault: ValueError") and arrived[4].result.fault is Fault.ERROR


def test_anchors_of_every_kind_are_compared_by_content() -> None:
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)

    class Shown:
        def __init__(self, anchor: Any) -> None:
            self.anchor = anchor

        def reset(self, task: Task, seed: int = 0) -> Observation:
            return Observation("here", anchor=self.anchor)

        def step(self, action: str) -> Any:
            raise AssertionError

    for anchor, same in ((picture, picture.copy()), (b"x", bytearray(b"x")), (7, np.int64(7)), ("text", "text")):
        assert came(lambda anchor=anchor: Shown(anchor), [arrive(TASK, 0, (), [same])])[0].ok
    for anchor, other in ((picture, picture[::-1]), (b"1", "1"), (1, "1")):
        assert not came(lambda anchor=anchor: Shown(anchor), [arrive(TASK, 0, (), [other])])[0].ok


# The checker


def test_the_checker_tries_snapshots_and_tells_their_size() -> None:
    report = check(WALKER, episodes=2, turns=6)
    assert report.ok, report.problems
    assert report.snapshot_bytes is not None and 1000 < report.snapshot_bytes < 10_000
    assert report.to_dict()["snapshot_bytes"] == report.snapshot_bytes
    assert check("numberline", episodes=1).snapshot_bytes


def test_the_checker_finds_a_restore_that_forgets_the_chance() -> None:
    report = check(WALKER, episodes=2, turns=6, forgets=True)
    assert [problem.rule for problem in report.problems] == ["after restore(state) the same actions give the same answers"]


def test_the_checker_finds_half_a_pair_and_snapshots_that_are_no_bytes() -> None:
    assert "snapshot() and restore(state) come together" in [problem.rule for problem in check(HalfRestorable, episodes=1).problems]

    class Texts(Walker):
        def snapshot(self) -> Any:
            return super().snapshot().decode()

    assert "snapshot() gives bytes" in [problem.rule for problem in check(Texts, episodes=1).problems]


def test_the_checker_notes_where_actions_played_again_do_not_arrive() -> None:
    report = check(Unseeded, episodes=2, turns=6)
    assert any("a branch from the middle of an attempt would be dropped. turn 2: the anchor is" in note for note in report.notes)
    assert not any("branch" in problem.rule for problem in report.problems)
    assert not any("branch" in note for note in check(Troubled, episodes=2, turns=6).notes)
    assert check(Troubled, episodes=1).snapshot_bytes is None
