"""The source: it runs a plan, and hands out what the plan returns with the version that sampled it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from collect_cases import WordEngine, numbered, policy
from toy_env import Corridor

from turnwise import TurnwiseError
from turnwise.collect.collector import Branch, Collector, Start
from turnwise.collect.source import LocalSource
from turnwise.data.rollouts import Stop, Trajectory
from turnwise.envs.pool import Pool
from turnwise.methods.planning import Gathered, TaskSlots

Rounds = Generator[Sequence[Start], list[Trajectory], Gathered]


@dataclass
class Place:
    plan: TaskSlots
    used: int = 0

    def begin(self) -> None: ...

    def groups(self, n: int) -> list[Start]:
        self.used += n
        return self.plan.starts(self.used - n, n)


class Once:
    """Every group once."""

    def gather(self, slots: Place, groups: int) -> Rounds:
        found = yield slots.groups(groups)
        return Gathered(found, {"rounds": 1.0})


class Branching:
    """Every attempt once, then once more from the middle of each."""

    def gather(self, slots: Place, groups: int) -> Rounds:
        starts = slots.groups(groups)
        found = yield starts
        more = yield [
            Start(start.task, start.group, 1000 + start.number, 0, start.policy_seed + 1, Branch(t, len(t.turns) // 2))
            for start, t in zip(starts, found, strict=True)
        ]
        return Gathered([*found, *more], {"rounds": 2.0})


@dataclass
class Setting:
    """A source over a pool and a word engine."""

    pool: Pool
    engine: Any = field(default_factory=lambda: WordEngine(bias=0))
    stopped: bool = False

    def __post_init__(self) -> None:
        self.engine.version = 4
        slots = Place(TaskSlots(numbered(6), seed=1, group_size=2))
        self.said: list[str] = []
        self.source = LocalSource(slots, 3, self.collector, lambda: self.engine, say=self.said.append, cancelled=lambda: self.stopped)

    def collector(self) -> Collector:
        return Collector(self.pool, policy(self.engine), max_turns=9)


def test_a_source_hands_out_what_the_plan_returns_with_tasks_counts_and_version() -> None:
    with Pool(Corridor, 4) as pool:
        setting = Setting(pool)
        first, second = setting.source.collect(Once()), setting.source.collect(Once())
    assert setting.source.slots.used == 6 and len(first.trajectories) == len(second.trajectories) == 6
    assert {t.id for t in first.trajectories}.isdisjoint(t.id for t in second.trajectories)
    assert set(first.tasks) == {t.task for t in first.trajectories} and first.tasks[first.trajectories[0].task].data
    assert first.version == 4 and first.complete and first.counts["rounds"] == 1 and first.counts["generations"] > 6
    assert "branches" not in first.counts and not setting.said


def test_the_engine_rests_while_a_batch_is_learned_from_if_it_should() -> None:
    for rests in (False, True):
        with Pool(Corridor, 4) as pool:
            setting, slept = Setting(pool), list[int]()
            setting.engine.sleeps, setting.engine.sleep = True, lambda slept=slept: slept.append(1)
            setting.source.rests = rests
            next(iter(setting.source.batches(Once())))
        assert slept == [1] * rests


def test_a_plan_sees_finished_attempts_and_branches_from_them() -> None:
    with Pool(Corridor, 4) as pool:
        batch = Setting(pool).source.collect(Branching())
    assert batch.counts["branches"] == 6 and batch.counts["lost_branches"] == 0
    by_id = {t.id: t for t in batch.trajectories}
    branches = [t for t in batch.trajectories if t.parent is not None]
    assert len(branches) == 6 and all(t.group == by_id[t.parent or 0].group for t in branches)
    assert all(t.turns[: t.branch_t] == by_id[t.parent or 0].turns[: t.branch_t] for t in branches)


def test_a_plan_never_sees_attempts_that_a_fault_has_ended_and_the_source_counts_them() -> None:
    """`Once` and `Again` return whatever they get back."""
    seen: list[Trajectory] = []

    class Again:
        def gather(self, slots: Place, groups: int) -> Rounds:
            seen.extend((yield slots.groups(groups)))
            seen.extend((yield slots.groups(groups)))
            return Gathered(seen, {"faults": -1.0})

    with Pool(partial(Corridor, "raise"), 4) as pool:
        setting = Setting(pool)
        attempts: list[Trajectory] = []
        setting.source.check = lambda finished: attempts.extend(finished) or finished  # type: ignore[func-returns-value]
        first, second = setting.source.collect(Once()), setting.source.collect(Again())
    faulted = [one.id for one in attempts if one.stop is Stop.ENVIRONMENT_FAULT]
    assert len(attempts) == 18 and 0 < len(faulted) < 18
    learned = [one.id for one in (*first.trajectories, *second.trajectories)]
    assert sorted([*learned, *faulted], key=int) == sorted((one.id for one in attempts), key=int)
    assert [one.id for one in seen] == [one.id for one in second.trajectories]
    assert first.counts["faults"] + second.counts["faults"] == len(faulted)


def test_a_cancelled_batch_is_not_complete_and_ends_the_source() -> None:
    with Pool(Corridor, 4) as pool:
        setting = Setting(pool)
        batches = setting.source.batches(Branching())
        assert next(batches).complete
        setting.stopped = True
        assert next(batches, None) is None and not setting.source.collect(Branching()).complete


def test_stored_trajectories_need_ids_of_their_own() -> None:
    class Twice:
        def gather(self, slots: Place, groups: int) -> Rounds:
            found = yield slots.groups(groups)
            return Gathered([*found, found[0]])

    with Pool(Corridor, 4) as pool:
        source = Setting(pool).source
        with pytest.raises(TurnwiseError, match="two trajectories with the id"):
            source.collect(Twice())
        with pytest.raises(TurnwiseError, match="versions only grow"):
            source.publish(3)
