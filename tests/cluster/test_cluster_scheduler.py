"""The scheduler of a cluster: bounds hold and every group ends exactly once, whatever dies when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from slow_scheduler import Table

from turnwise.cluster.scheduler import Action, Dispatch, Ended, Group, Lease, Scheduler
from turnwise.util.errors import TurnwiseError

ENGINES = ("A", "B", "C")


def leases(actions: list[Action]) -> list[Lease]:
    return [action.lease for action in actions if isinstance(action, Dispatch)]


def busy(groups: int = 2, **settings: Any) -> tuple[Scheduler, list[Lease]]:
    """A scheduler with one engine that runs the groups of batch 0."""
    scheduler = Scheduler(**{"staleness": 1, "capacity": 4} | settings)
    actions = scheduler.engine_up("A", 0)
    for id in range(groups):
        actions += scheduler.submit(Group(id, 0))
    return scheduler, leases(actions)


def test_a_batch_begins_at_most_k_versions_early_and_only_where_the_weights_are() -> None:
    scheduler = Scheduler(staleness=1, capacity=4)
    scheduler.engine_up("A", 0)
    assert scheduler.may_begin(1) and not scheduler.may_begin(2)
    assert leases(scheduler.submit(Group(0, 1))) and not leases(scheduler.submit(Group(1, 2)))
    assert scheduler.published(1) == [], "published, but the engine does not have it yet"
    assert [lease.version for lease in leases(scheduler.engine_published("A", 1))] == [1]


def test_leases_of_a_lost_engine_go_elsewhere_and_its_late_answers_are_ignored() -> None:
    scheduler, (first, _) = busy()
    scheduler.engine_up("B", 0)
    again = leases(scheduler.engine_down("A"))
    assert [(lease.group, lease.attempt, lease.engine) for lease in again] == [(0, 2, "B"), (1, 2, "B")]
    assert scheduler.finished(first, 0) == [] and not scheduler.holds(0)
    scheduler.engine_up("A", 0)
    assert [lease.engine for lease in leases(scheduler.finished(again[0], 0, ok=False))] == ["A"], "not again where it has just failed"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda scheduler: scheduler.submit(Group(0, 0)), "group 0 was submitted before; the next id is 2"),
        (lambda scheduler: scheduler.published(-1), "version -1 was published after version 0"),
        (lambda scheduler: scheduler.formed(0) and scheduler.formed(0), "batch 0 was formed before"),
        (lambda scheduler: scheduler.formed(0) and scheduler.submit(Group(7, 0)), "after its batch 0 was formed; the next is 1"),
        (lambda scheduler: scheduler.submit(Group(2, 0)) and scheduler.formed(0), "batch 0 was formed before group 2 had finished"),
    ],
)
def test_what_cannot_be_is_an_error(wrong: Any, message: str) -> None:
    scheduler, given = busy()
    for lease in given:
        scheduler.finished(lease, 0)
    with pytest.raises(TurnwiseError, match=message):
        wrong(scheduler)


class AnythingMayHappen(RuleBasedStateMachine):
    """Engines die and return, answers come late, twice or never, versions are published at any time, the driver dies.
    `slow_scheduler.Table` checks every action against the rules."""

    @initialize(
        staleness=st.integers(0, 3),
        retries=st.integers(0, 2),
        capacity=st.integers(1, 3),
        up=st.sets(st.sampled_from(ENGINES), min_size=1),
        groups=st.integers(0, 4),
    )
    def begin(self, staleness: int, retries: int, capacity: int, up: set[str], groups: int) -> None:
        self.scheduler = Scheduler(staleness, capacity, retries)
        self.table = Table(staleness, capacity, retries)
        self.given: list[Lease] = []
        for name in sorted(up):
            self.engine_up(name, 0)
        self.submit(0, None, groups)

    def heard(self, actions: list[Action]) -> list[Action]:
        self.given += leases(actions)
        return actions

    @rule(name=st.sampled_from(ENGINES), behind=st.sampled_from([0, 0, 0, 1, 2]))
    def engine_up(self, name: str, behind: int) -> None:
        version = max(self.table.version - behind, 0)
        self.table.engine_up(name, version, self.heard(self.scheduler.engine_up(name, version)))

    @rule(name=st.sampled_from(ENGINES))
    def engine_down(self, name: str) -> None:
        self.table.engine_down(name, self.heard(self.scheduler.engine_down(name)))

    @rule(ahead=st.sampled_from([0, 0, 1, 2, 3]), prefers=st.sampled_from([None, *ENGINES]), number=st.integers(1, 3))
    def submit(self, ahead: int, prefers: str | None, number: int) -> None:
        for _ in range(number):
            group = Group(self.scheduler.next_id, self.scheduler.next_batch + ahead, prefers)
            self.table.submit(group, self.heard(self.scheduler.submit(group)))

    @precondition(lambda self: any(row.lease for row in self.table.rows.values()))
    @rule(data=st.data(), ok=st.sampled_from([True, True, False]), older=st.integers(0, 1))
    def answer(self, data: st.DataObject, ok: bool, older: int) -> None:
        lease = data.draw(st.sampled_from([row.lease for row in self.table.rows.values() if row.lease]))
        oldest = lease.version - older
        self.table.finished(lease, oldest, ok, self.heard(self.scheduler.finished(lease, oldest, ok)))

    @precondition(lambda self: self.given)
    @rule(data=st.data(), ok=st.booleans())
    def late_answer(self, data: st.DataObject, ok: bool) -> None:
        """To any lease that was ever given, whoever has the group now."""
        lease = data.draw(st.sampled_from(self.given[-12:]))
        self.table.finished(lease, lease.version, ok, self.heard(self.scheduler.finished(lease, lease.version, ok)))

    @rule(ahead=st.integers(0, 2))
    def publish(self, ahead: int) -> None:
        version = self.table.version + ahead
        self.table.published(version, self.heard(self.scheduler.published(version)))

    @rule(name=st.sampled_from(ENGINES), ahead=st.integers(0, 1))
    def engine_published(self, name: str, ahead: int) -> None:
        """An engine may have new weights before the driver hears that they are published."""
        version = self.table.version + ahead
        self.table.engine_published(name, version, self.heard(self.scheduler.engine_published(name, version)))

    @precondition(lambda self: all(row.oldest is not None for row in self.table.rows.values() if row.group.batch <= self.table.formed))
    @rule()
    def form(self) -> None:
        batch = self.scheduler.next_batch
        self.table.form(batch, self.heard(self.scheduler.formed(batch)))

    @invariant()
    def all_is_accounted_for(self) -> None:
        if not hasattr(self, "table"):
            return
        rows, counts = self.table.rows, self.scheduler.counts
        assert len(rows) + counts["accepted"] + counts["stale"] + counts["failed"] == len(rows) + len(self.table.ends)
        assert set(rows) | set(self.table.ends) == set(range(self.scheduler.next_id)), "a group was lost"
        assert {id for id in rows if self.scheduler.holds(id)} == {id for id, row in rows.items() if row.oldest is not None}
        assert all(self.table.running(name) <= self.table.capacity for name in ENGINES)

    def teardown(self) -> None:
        """One engine with current weights is enough for everything to end."""
        if not hasattr(self, "table"):
            return
        last = max((row.group.batch for row in self.table.rows.values()), default=0)
        self.publish(ahead=max(last - self.table.version, 0))
        self.engine_up("A", behind=0)
        while running := [row.lease for row in self.table.rows.values() if row.lease is not None]:
            for lease in running:
                self.table.finished(lease, lease.version, True, self.heard(self.scheduler.finished(lease, lease.version)))
        while self.table.rows:
            self.form()
        assert set(self.table.ends) == set(range(self.scheduler.next_id)) and not self.table.rows


AnythingMayHappen.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestAnythingMayHappen = AnythingMayHappen.TestCase


def test_the_rules_would_notice_a_group_that_ends_twice_or_comes_too_late() -> None:
    table = Table(staleness=0, capacity=1, retries=0)
    group = Group(0, 1)
    table.engine_up("A", 0, [])
    with pytest.raises(AssertionError, match="not the weights"):
        table.submit(group, [Dispatch(Lease(0, 1, "A", 0))])
    with pytest.raises(AssertionError):
        table.published(1, [Ended(group, "accepted")])
