"""Which engine runs which group, and which groups may be learned from. A pure state machine: events in, actions out.

There is no clock, no thread and no process here. A driver reports what happened and performs the actions that are returned; a simulation
does the same with a simulated clock, so both run this code.

    scheduler = Scheduler(groups_per_batch=16, staleness=1, capacity=8, deadline=600)
    actions = scheduler.engine_up("E0", version=0)
    actions += scheduler.submit(Group(scheduler.next_id, batch=0, size=8))      # → [Dispatch(Lease(group 0, attempt 1, …), "E0")]
    actions += scheduler.finished(lease, oldest_version=0)                      # held until its batch is formed
    actions += scheduler.formed(0)                                              # → [Ended(group 0, "accepted")]

**Batches** are numbered from 0, and batch b is learned from with version b of the weights, so a group whose oldest token has version v has
the age b − v. The bound k (`staleness`) is kept in two places. *Admission*: a group of batch b is dispatched only when version b − k is
published, and only to an engine that has it. Admission goes by the number of a batch and never by a count of groups, so a group that was
dropped cannot use up room. *Sweep*: `formed` looks at the oldest version that an engine really used, and drops the whole group if it is
too old. A group is dropped as a whole, because the baseline of its members would change without one of them.

**Leases.** A dispatched group is leased to one engine under an attempt number. The lease ends if the engine is lost, the deadline passes or
the answer is not ok: the group is then attempted again from its start, on another engine if possible, up to `retries` times, and then
fails. Only the answer to the current attempt counts; late and duplicate ones are ignored.

**Ends.** Every submitted group ends exactly once: "accepted" (learn from it), "stale" (too old) or "failed". Ids only grow, which is how
the scheduler recognises an ended group without remembering it.

**Formation** may happen before all groups of a batch have finished. What is left moves on to the next batch; if its tokens would be too
old there, it is cancelled at once.

Waiting groups are dispatched in the order of batches and ids. A group goes to the engine that it prefers (the one that holds its cache) if
that has room, otherwise to the least loaded one: no engine idles while admitted work waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from turnwise.util.errors import TurnwiseError

End = Literal["accepted", "stale", "failed"]


@dataclass(frozen=True)
class Group:
    """What is submitted. `size` is its number of trajectories; `prefers` is the engine that holds its cache."""

    id: int
    batch: int
    size: int
    prefers: str | None = None


@dataclass(frozen=True)
class Lease:
    """One attempt at a group by one engine. `version` is the engine's at dispatch; `deadline` is on the driver's clock."""

    group: int
    attempt: int
    engine: str
    version: int
    deadline: float | None = None


@dataclass(frozen=True)
class Dispatch:
    """Run this group on this engine."""

    lease: Lease
    engine: str


@dataclass(frozen=True)
class Cancel:
    """Stop this attempt: its answer is not needed any more, and others get its room. An engine that cannot stop it must be replaced."""

    lease: Lease
    engine: str


@dataclass(frozen=True)
class Ended:
    """A group has ended, in this batch. `oldest_version` is that of its oldest token, or None if no attempt was finished."""

    group: Group
    how: End
    batch: int
    oldest_version: int | None = None
    attempts: int = 0


Action = Dispatch | Cancel | Ended


@dataclass
class _Engine:
    version: int
    capacity: int
    arrival: int
    leases: set[int] = field(default_factory=set)
    stamp: int = 0  # of its entry among the engines with room

    @property
    def load(self) -> float:
        return len(self.leases) / self.capacity


@dataclass
class _Record:
    """A group that has not ended: waiting (no lease), running (a lease), or held (its oldest version is known)."""

    group: Group
    batch: int
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

    def __init__(
        self, groups_per_batch: int, staleness: int, capacity: Mapping[str, int] | int, retries: int = 2, deadline: float | None = None
    ):
        given = {"groups_per_batch": groups_per_batch, "staleness": staleness, "retries": retries}
        rooms = capacity if isinstance(capacity, Mapping) else {"every engine": capacity}
        given |= {f"the capacity of {name}": room for name, room in rooms.items()}
        for name, value in given.items():
            low = 0 if name in ("staleness", "retries") else 1
            if value < low:
                raise TurnwiseError(f"scheduler: {name} is {value}; it must be at least {low}")
        if deadline is not None and not deadline > 0:
            raise TurnwiseError(f"scheduler: the deadline is {deadline} s; give a positive number, or None")
        self.groups_per_batch, self.staleness, self.capacity = groups_per_batch, staleness, capacity
        self.retries, self.deadline = retries, deadline
        self.version = 0  # of the weights that were published last
        self.now = 0.0
        self.next_batch = 0  # the first batch that has not been formed
        self.next_id = 0  # the smallest id that has not been submitted
        self.counts = dict.fromkeys(("accepted", "stale", "failed", "retried", "lost", "expired", "ignored"), 0)
        self._engines: dict[str, _Engine] = {}
        self._records: dict[int, _Record] = {}
        self._queue: list[tuple[int, int]] = []  # (batch, id); an entry of a group that no longer waits is skipped
        self._free_engines: dict[int, list[tuple[float, int, int, str]]] = {}  # by version: (load, arrival, stamp, engine), heaps
        self._arrivals = self._stamps = 0

    # -- questions ---------------------------------------------------------------------------------------------------------------------

    def may_begin(self, batch: int) -> bool:
        """Whether groups of this batch may be dispatched."""
        return batch >= self.next_batch and self.version >= batch - self.staleness

    def admitted(self) -> range:
        """The batches that may be gathered now."""
        return range(self.next_batch, max(self.version + self.staleness + 1, self.next_batch))

    def missing(self, batch: int) -> int:
        """How many groups a batch lacks. Groups that were stale or failed are not counted, so that others may take their place."""
        return max(self.groups_per_batch - sum(record.batch == batch for record in self._records.values()), 0)

    def unfinished(self, batch: int) -> list[int]:
        """The groups of a batch that wait or run."""
        return sorted(id for id, record in self._records.items() if record.batch == batch and record.oldest is None)

    def held(self, batch: int) -> list[int]:
        """The groups of a batch that have finished and wait for its formation."""
        return sorted(id for id, record in self._records.items() if record.batch == batch and record.oldest is not None)

    def running(self, engine: str) -> int:
        """The groups that an engine runs; 0 for one that is not up."""
        return len(self._engines[engine].leases) if engine in self._engines else 0

    @property
    def engines(self) -> list[str]:
        """The engines that are up."""
        return list(self._engines)

    # -- events ------------------------------------------------------------------------------------------------------------------------

    def engine_up(self, engine: str, version: int) -> list[Action]:
        """An engine serves with weights of this version. If it was up already, it was restarted and has lost its leases."""
        room = self.capacity if isinstance(self.capacity, int) else self.capacity.get(engine)
        if room is None:
            raise TurnwiseError(f"scheduler: no capacity is given for the engine {engine!r}")
        actions = self._lose(engine)
        self._arrivals += 1
        self._engines[engine] = _Engine(version, room, self._arrivals)
        self._changed(engine)
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
        self._records[group.id] = _Record(group, group.batch)
        self._wait(group.id)
        return self._dispatch()

    def finished(self, lease: Lease, oldest_version: int, ok: bool = True, now: float = 0.0) -> list[Action]:
        """An engine has answered. `oldest_version` is that of the oldest token; not `ok`: the attempt was faulted."""
        self.now = max(self.now, now)
        record = self._current(lease)
        if record is None:
            self.counts["ignored"] += 1
            return []
        if not ok:
            return self._failed(record) + self._dispatch()
        self._free(record)
        record.oldest = oldest_version
        return self._dispatch()

    def published(self, version: int) -> list[Action]:
        """The learner has published this version. Engines have it when `engine_published` says so."""
        if version < self.version:
            raise TurnwiseError(f"scheduler: version {version} was published after version {self.version}; load an earlier state instead")
        self.version = version
        known = {engine.version for engine in self._engines.values()}
        self._free_engines = {number: heap for number, heap in self._free_engines.items() if number in known}
        return self._dispatch()

    def engine_published(self, engine: str, version: int) -> list[Action]:
        """An engine now samples with this version. Has no effect for an engine that is not up."""
        if engine in self._engines:
            self._engines[engine].version = version
            self._changed(engine)
        return self._dispatch()

    def tick(self, now: float) -> list[Action]:
        """The current time. Leases whose deadline has passed are cancelled, and their groups wait again."""
        self.now = max(self.now, now)
        actions: list[Action] = []
        for record in list(self._records.values()):
            if record.lease is not None and record.lease.deadline is not None and record.lease.deadline <= self.now:
                self.counts["expired"] += 1
                actions += [Cancel(record.lease, record.lease.engine), *self._failed(record)]
        return actions + self._dispatch()

    def formed(self, batch: int) -> list[Action]:
        """A batch is formed of the groups that have finished. Each of them ends, as accepted or as stale; the others move on."""
        if batch < self.next_batch:
            raise TurnwiseError(f"scheduler: batch {batch} was formed before; the next is {self.next_batch}")
        self.next_batch = batch + 1
        actions: list[Action] = []
        for record in [record for record in self._records.values() if record.batch <= batch]:
            if record.oldest is not None:
                record.batch = batch
                actions.append(self._end(record, "stale" if record.oldest < batch - self.staleness else "accepted"))
                continue
            record.batch = batch + 1
            if record.lease is None:
                self._wait(record.group.id)
            elif record.lease.version < record.batch - self.staleness:
                actions += [Cancel(record.lease, record.lease.engine), self._end(record, "stale")]
        return actions + self._dispatch()

    # -- inside ------------------------------------------------------------------------------------------------------------------------

    def _current(self, lease: Lease) -> _Record | None:
        record = self._records.get(lease.group)
        return record if record is not None and record.lease == lease else None

    def _wait(self, id: int) -> None:
        heapq.heappush(self._queue, (self._records[id].batch, id))

    def _free(self, record: _Record) -> None:
        if record.lease is not None and record.lease.engine in self._engines:
            self._engines[record.lease.engine].leases.discard(record.group.id)
            self._changed(record.lease.engine)
        record.lease = None

    def _lose(self, engine: str) -> list[Action]:
        if engine not in self._engines:
            return []
        leases = sorted(self._engines.pop(engine).leases)
        self.counts["lost"] += len(leases)
        return [action for id in leases for action in self._failed(self._records[id])]

    def _failed(self, record: _Record) -> list[Action]:
        """An attempt has failed: the group waits for the next one, or ends."""
        record.avoid = record.lease.engine if record.lease else None
        record.failures += 1
        if record.failures > self.retries:
            return [self._end(record, "failed")]
        self._free(record)
        self.counts["retried"] += 1
        self._wait(record.group.id)
        return []

    def _end(self, record: _Record, how: End) -> Ended:
        self._free(record)
        del self._records[record.group.id]
        self.counts[how] += 1
        return Ended(record.group, how, record.batch, record.oldest, record.attempt)

    def _dispatch(self) -> list[Action]:
        """Dispatch the waiting groups, in order. What the first one lacks (a version, an engine with room), all others lack, too."""
        actions: list[Action] = []
        while self._queue:
            batch, id = self._queue[0]
            record = self._records.get(id)
            if record is None or not record.waiting or record.batch != batch:
                heapq.heappop(self._queue)
                continue
            engine = self._engine_for(record)
            if engine is None:
                break
            heapq.heappop(self._queue)
            actions.append(self._lend(record, engine))
        return actions

    def _engine_for(self, record: _Record) -> str | None:
        """The engine for a group, or None if it must wait."""
        if not self.may_begin(record.batch):
            return None
        needed, group = record.batch - self.staleness, record.group
        preferred = self._engines.get(group.prefers) if group.prefers is not None else None
        if preferred and group.prefers != record.avoid and preferred.version >= needed and len(preferred.leases) < preferred.capacity:
            return group.prefers
        found = [(load, -version, arrival, name) for version, (load, arrival, name) in self._least_loaded(needed, record.avoid)]
        if not found and record.avoid is not None:  # there again, if there is no other
            found = [(load, -version, arrival, name) for version, (load, arrival, name) in self._least_loaded(needed, None)]
        return min(found)[-1] if found else None

    def _least_loaded(self, needed: int, avoid: str | None) -> Iterator[tuple[int, tuple[float, int, str]]]:
        """The first engine with room of each version that is new enough. Outdated entries of engines are dropped during the search."""
        for version, heap in self._free_engines.items():
            aside = None
            while version >= needed and heap:
                load, arrival, stamp, name = heap[0]
                if name not in self._engines or self._engines[name].stamp != stamp:
                    heapq.heappop(heap)
                elif name == avoid:
                    aside = heapq.heappop(heap)
                else:
                    yield version, (load, arrival, name)
                    break
            if aside is not None:
                heapq.heappush(heap, aside)

    def _changed(self, engine: str) -> None:
        """The load or version of an engine has changed: enter it again among those with room."""
        one = self._engines[engine]
        self._stamps += 1
        one.stamp = self._stamps
        if len(one.leases) < one.capacity:
            heapq.heappush(self._free_engines.setdefault(one.version, []), (one.load, one.arrival, one.stamp, engine))

    def _lend(self, record: _Record, engine: str) -> Dispatch:
        deadline = None if self.deadline is None else self.now + self.deadline
        record.attempt += 1
        record.lease = Lease(record.group.id, record.attempt, engine, self._engines[engine].version, deadline)
        self._engines[engine].leases.add(record.group.id)
        self._changed(engine)
        return Dispatch(record.lease, engine)


def ended(actions: Iterable[Action]) -> dict[int, End]:
    """Group id → how it ended."""
    return {action.group.id: action.how for action in actions if isinstance(action, Ended)}
