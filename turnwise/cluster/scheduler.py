"""Which engine runs which group, and which groups may be learned from. A pure state machine: events in, actions out.

There is no clock, no thread and no process here. A driver reports what happened and performs the actions that are returned.

    scheduler = Scheduler(staleness=1, capacity=8)
    actions = scheduler.engine_up("E0", version=0)
    actions += scheduler.submit(Group(scheduler.next_id, batch=0))              # → [Dispatch(Lease(group 0, attempt 1, …))]
    actions += scheduler.finished(lease, oldest_version=0)                      # held until its batch is formed
    actions += scheduler.formed(0)                                              # → [Ended(group 0, "accepted")]

**Batches** are numbered from 0, and batch b is learned from with version b of the weights, so a group whose oldest token has version v has
the age b − v. The bound k (`staleness`) is kept in two places. *Admission*: a group of batch b is dispatched only when version b − k is
published, and only to an engine that has it. Admission goes by the number of a batch and never by a count of groups, so a group that was
dropped cannot use up room. *Sweep*: `formed` looks at the oldest version that an engine really used, and drops the whole group if it is
too old. A group is dropped as a whole, because the baseline of its members would change without one of them.

**Leases.** A dispatched group is leased to one engine under an attempt number. The lease ends if the engine is lost or the answer is not
ok: the group is then attempted again from its start, on another engine if possible, up to `retries` times, and then fails. Only the answer
to the current attempt counts; late and duplicate ones are ignored.

**Ends.** Every submitted group ends exactly once: "accepted" (learn from it), "stale" (too old) or "failed". Ids only grow, which is how
the scheduler recognises an ended group without remembering it. A batch is formed when none of its groups waits or runs.

Waiting groups are dispatched in the order of batches and ids. A group goes to the engine that it prefers (the one that holds its cache) if
that has room, otherwise to the least loaded one: no engine idles while admitted work waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from turnwise.util.errors import TurnwiseError

End = Literal["accepted", "stale", "failed"]


@dataclass(frozen=True)
class Group:
    """What is submitted. `prefers` is the engine that holds its cache."""

    id: int
    batch: int
    prefers: str | None = None


@dataclass(frozen=True)
class Lease:
    """One attempt at a group by one engine. `version` is the engine's at dispatch."""

    group: int
    attempt: int
    engine: str
    version: int


@dataclass(frozen=True)
class Dispatch:
    """Run the group of this lease on its engine."""

    lease: Lease


@dataclass(frozen=True)
class Ended:
    """A group has ended."""

    group: Group
    how: End


Action = Dispatch | Ended


@dataclass
class _Engine:
    version: int
    leases: set[int] = field(default_factory=set)


@dataclass
class _Record:
    """A group that has not ended: waiting (no lease), running (a lease), or held (its oldest version is known)."""

    group: Group
    attempt: int = 0
    failures: int = 0
    lease: Lease | None = None
    oldest: int | None = None
    avoid: str | None = None

    @property
    def waiting(self) -> bool:
        return self.lease is None and self.oldest is None


class Scheduler:
    """See the top of this file. Events return the actions that follow from them, in order."""

    def __init__(self, staleness: int, capacity: int, retries: int = 2):
        self.staleness, self.capacity, self.retries = staleness, capacity, retries
        self.version = 0  # of the weights that were published last
        self.next_batch = 0  # the first batch that has not been formed
        self.next_id = 0  # the smallest id that has not been submitted
        self.counts = dict.fromkeys(("accepted", "stale", "failed", "retried", "ignored"), 0)
        self._engines: dict[str, _Engine] = {}  # in the order of their starts
        self._records: dict[int, _Record] = {}

    # -- questions ---------------------------------------------------------------------------------------------------------------------

    def may_begin(self, batch: int) -> bool:
        """Whether groups of this batch may be dispatched."""
        return batch >= self.next_batch and self.version >= batch - self.staleness

    def holds(self, id: int) -> bool:
        """Whether a group has finished and waits for the formation of its batch."""
        return id in self._records and self._records[id].oldest is not None

    @property
    def engines(self) -> list[str]:
        """The engines that are up."""
        return list(self._engines)

    # -- events ------------------------------------------------------------------------------------------------------------------------

    def engine_up(self, engine: str, version: int) -> list[Action]:
        """An engine serves with weights of this version. If it was up already, it was restarted and has lost its leases."""
        actions = self._lose(engine)
        self._engines[engine] = _Engine(version)
        return actions + self._dispatch()

    def engine_down(self, engine: str) -> list[Action]:
        """An engine is lost, and its leases with it."""
        return self._lose(engine) + self._dispatch()

    def submit(self, group: Group) -> list[Action]:
        """A new group. Ids must grow; its batch must not have been formed."""
        if group.id < self.next_id:
            raise TurnwiseError(f"scheduler: group {group.id} was submitted before; the next id is {self.next_id}")
        if group.batch < self.next_batch:
            raise TurnwiseError(f"scheduler: group {group.id} came after its batch {group.batch} was formed; the next is {self.next_batch}")
        self.next_id = group.id + 1
        self._records[group.id] = _Record(group)
        return self._dispatch()

    def finished(self, lease: Lease, oldest_version: int, ok: bool = True) -> list[Action]:
        """An engine has answered. `oldest_version` is that of the oldest token; not `ok`: the attempt was faulted."""
        record = self._records.get(lease.group)
        if record is None or record.lease != lease:
            self.counts["ignored"] += 1
            return []
        self._engines[lease.engine].leases.discard(lease.group)
        if not ok:
            return self._failed(record) + self._dispatch()
        record.lease, record.oldest = None, oldest_version
        return self._dispatch()

    def published(self, version: int) -> list[Action]:
        """The learner has published this version. Engines have it when `engine_published` says so."""
        if version < self.version:
            raise TurnwiseError(f"scheduler: version {version} was published after version {self.version}; load an earlier state instead")
        self.version = version
        return self._dispatch()

    def engine_published(self, engine: str, version: int) -> list[Action]:
        """An engine now samples with this version. Has no effect for an engine that is not up."""
        if engine in self._engines:
            self._engines[engine].version = version
        return self._dispatch()

    def formed(self, batch: int) -> list[Action]:
        """A batch is formed of its groups, which have all finished. Each of them ends, as accepted or as stale."""
        if batch < self.next_batch:
            raise TurnwiseError(f"scheduler: batch {batch} was formed before; the next is {self.next_batch}")
        actions: list[Action] = []
        for record in [record for record in self._records.values() if record.group.batch <= batch]:
            if record.oldest is None:
                raise TurnwiseError(f"scheduler: batch {batch} was formed before group {record.group.id} had finished")
            actions.append(self._end(record, "stale" if record.oldest < batch - self.staleness else "accepted"))
        self.next_batch = batch + 1
        return actions

    # -- inside ------------------------------------------------------------------------------------------------------------------------

    def _lose(self, engine: str) -> list[Action]:
        if engine not in self._engines:
            return []
        return [action for id in sorted(self._engines.pop(engine).leases) for action in self._failed(self._records[id])]

    def _failed(self, record: _Record) -> list[Action]:
        """An attempt has failed: the group waits for the next one, or ends."""
        record.avoid, record.lease = record.lease.engine if record.lease else None, None
        record.failures += 1
        if record.failures > self.retries:
            return [self._end(record, "failed")]
        self.counts["retried"] += 1
        return []

    def _end(self, record: _Record, how: End) -> Ended:
        del self._records[record.group.id]
        self.counts[how] += 1
        return Ended(record.group, how)

    def _dispatch(self) -> list[Action]:
        """Dispatch the waiting groups, in order. What the first one lacks (a version, an engine with room), all others lack, too."""
        actions: list[Action] = []
        waiting = [record for record in self._records.values() if record.waiting]
        for record in sorted(waiting, key=lambda record: (record.group.batch, record.group.id)):
            name = self._engine_for(record)
            if name is None:
                break
            record.attempt += 1
            record.lease = Lease(record.group.id, record.attempt, name, self._engines[name].version)
            self._engines[name].leases.add(record.group.id)
            actions.append(Dispatch(record.lease))
        return actions

    def _engine_for(self, record: _Record) -> str | None:
        """The engine for a group, or None if it must wait: the one that it prefers, otherwise the least loaded one; the one
        where it has just failed only if there is no other."""
        needed = record.group.batch - self.staleness
        if not self.may_begin(record.group.batch):
            return None
        able = {name: one for name, one in self._engines.items() if one.version >= needed and len(one.leases) < self.capacity}
        others = [name for name in able if name != record.avoid]
        if record.group.prefers in others:
            return record.group.prefers
        return min(others or able, key=lambda name: (len(able[name].leases), -able[name].version), default=None)
