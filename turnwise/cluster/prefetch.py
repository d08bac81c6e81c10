"""Batches that are collected ahead of the learner, within a bound.

A thread owns the engines and the scheduler. It starts the plan's next batch as soon as the scheduler admits it, sends groups to engines,
takes their results, forms batches in order, and drops groups that have become too old. The learner's thread takes formed batches from a
queue and publishes weights. If it needs the engines for something else, such as an evaluation, this thread does that work.

Batch b is learned from by version b of the weights. Every group that was attempted ends exactly once: it is learned from, too old, or
failed (`scheduler.py`). A checkpoint stores the progress of the run when its last batch was formed, so groups that were being played then
are attempted again.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from turnwise.cluster.metrics import drop_metrics
from turnwise.cluster.scheduler import Action, Dispatch, Ended, Group, Lease, Scheduler
from turnwise.cluster.work import Spec, lost
from turnwise.cluster.workers import RolloutWorkers, Worker
from turnwise.collect.games import in_order, planned_group
from turnwise.collect.hooks import Hooks
from turnwise.collect.source import Collected, Gathering, LocalSource, Mark, mark_of
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory


@dataclass
class Gather(Gathering):
    """A batch that is being gathered ahead. `waiting` are the groups of the current round that have not ended, by the scheduler's ids."""

    batch: int
    mark: Mark
    starts: Sequence[Start] = ()
    waiting: set[int] = field(default_factory=set)
    found: dict[int | str, Trajectory] = field(default_factory=dict)  # of the current round, by number
    homes: dict[int | str, str] = field(default_factory=dict)  # which engine has played a group
    groups: dict[int, set[int | str]] = field(default_factory=dict)  # of the trajectories of a scheduler's group
    counts: Counter[str] = field(default_factory=Counter)
    lost: str = ""


class Formed(NamedTuple):
    """A batch for the learner, how far the run has come with it, and which groups were dropped since the batch before."""

    collected: Collected
    mark: Mark
    drops: dict[str, float]


class Prefetcher:
    """Collects in a thread what `source` would collect on demand: `batches` batches of a plan, numbered from `first` on. `formed` has them
    in order, or the error that ended the thread."""

    def __init__(
        self,
        workers: RolloutWorkers,
        source: LocalSource,
        plan: Any,
        staleness: int,
        spec: Spec,
        first: int = 0,
        batches: int | None = None,
        hooks: Hooks = Hooks(),  # noqa: B008  # frozen
        retries: int = 2,
    ):
        self.workers, self.source, self.plan, self.spec, self.hooks = workers, source, plan, spec, hooks
        self.scheduler = Scheduler(staleness, source.groups, retries)
        self.scheduler.published(first)
        self.formed: queue.Queue[Formed | BaseException] = queue.Queue()
        self._told = dict(self.scheduler.counts)
        self._asked: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._gathers: list[Gather] = []
        self._leases: dict[Any, tuple[Lease, Worker]] = {}
        self._starts: dict[int, tuple[Gather, list[Start]]] = {}  # by the scheduler's ids
        self._lives: dict[int, int] = {}
        self._next, self._end = first, None if batches is None else first + batches
        self._stopped = False
        self._thread = threading.Thread(target=self._live, name="prefetch", daemon=True)
        self._thread.start()

    # -- called by the learner's thread ---------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def do(self, work: Callable[[], Any]) -> Any:
        """Do this in the thread that owns the engines, and wait for it. If that thread has ended, or is the current one, do it here."""
        if threading.current_thread() is self._thread:
            return work()
        done: Future[Any] = Future()
        self._asked.put((work, done))
        while not done.done():
            if not self._thread.is_alive():
                self._answer()
            else:
                wait([done], timeout=0.5)
        return done.result(timeout=0)

    def published(self, version: int) -> None:
        """The learner has this version now."""
        self._act(self.scheduler.published(version))

    def stop(self, patience: float = 60.0) -> None:
        """End the thread. Groups that are being played are dropped."""
        self._stopped = True
        if threading.current_thread() is not self._thread:
            self._thread.join(patience)

    # -- the thread -----------------------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            self.workers.settle()  # an engine that is only slower to start gets its share of the first batch
            while not self._stopped and not self.workers.hooks.cancelled() and (self._gathers or self._more):
                self._answer()
                self._begin()
                done = self.workers.step(list(self._leases))
                self._follow()
                for ref in done:
                    self._returned(ref)
                for gather in list(self._gathers):
                    if gather.brought is None and not gather.waiting:
                        self._send(gather, self.source.check(in_order(gather.starts, gather.found)))
                self._form()
        except BaseException as error:
            self.formed.put(error)
        finally:
            for gather in self._gathers:
                gather.rounds.close()

    @property
    def _more(self) -> bool:
        return self._end is None or self._next < self._end

    def _answer(self) -> None:
        """Do the work that the learner's thread has requested."""
        while True:
            try:
                work, done = self._asked.get_nowait()
            except queue.Empty:
                return
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

    def _begin(self) -> None:
        """Start gathering the batches that are admitted, one at a time unless the plan allows them to overlap. All engines that new weights
        are on their way to get them first: the first one to have them would take the whole batch, and the others would idle."""
        overlaps = self.plan.overlaps
        if any(member.state == "updating" for member in self.workers.members):
            return
        self._follow()
        while self._more and self.scheduler.may_begin(self._next):
            if any(gather.brought is None for gather in self._gathers) and not overlaps:
                return
            self.source.slots.begin()
            rounds = self.plan.gather(self.source.slots, self.source.groups)
            gather = Gather(rounds, self.scheduler.version, self._next, mark_of(self.source.slots, self.plan))
            self._gathers.append(gather)
            self._next += 1
            self._send(gather, None)

    def _send(self, gather: Gather, finished: list[Trajectory] | None) -> None:
        """The next round of a plan, or its end."""
        starts = gather.advance(finished)
        if finished is None or not self.plan.overlaps:  # batches that overlap take their task slots when they begin
            gather.mark = mark_of(self.source.slots, self.plan)
        if starts is None:
            return
        gather.starts, gather.found = starts, {}
        self.hooks.on_start(len(starts))
        groups: dict[int | str, list[Start]] = {}
        for start in starts:
            groups.setdefault(start.group if start.branch is None else start.branch.trajectory.group, []).append(start)
        for home, members in groups.items():
            group = Group(self.scheduler.next_id, gather.batch, gather.homes.get(home))
            gather.waiting.add(group.id)
            gather.groups[group.id] = {start.group for start in members}
            self._starts[group.id] = gather, members
            self._act(self.scheduler.submit(group))

    # -- engines ----------------------------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Tell the scheduler which engines are up, and with which weights."""
        for member in self.workers.members:
            name = str(member.number)
            gone = self._lives.get(member.number) != member.lives or member.state == "gone"
            if name in self.scheduler.engines and gone:
                self._leases = {ref: pair for ref, pair in self._leases.items() if pair[1] is not member}
                self._act(self.scheduler.engine_down(name))
            if name not in self.scheduler.engines and member.state == "up":
                self._lives[member.number] = member.lives
                self._act(self.scheduler.engine_up(name, member.version))
            elif member.state == "up":
                self._act(self.scheduler.engine_published(name, member.version))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                member = self.workers.members[int(action.lease.engine)]
                gather, starts = self._starts[action.lease.group]
                ref = self.workers.employ(member, member.handle.group.remote(gather.batch, self.spec, starts))
                self._leases[ref] = action.lease, member
            elif isinstance(action, Ended):
                gather, starts = self._starts.pop(action.group.id)
                if action.how == "failed":
                    gather.waiting.discard(action.group.id)
                    gather.found |= {start.number: lost(start) for start in starts}
                if action.how == "accepted":
                    gather.groups.pop(action.group.id)

    def _returned(self, ref: Any) -> None:
        """An engine has answered."""
        if ref not in self._leases:
            return
        lease, member = self._leases.pop(ref)
        outcome = self.workers.result(member, ref)
        if outcome is None:
            self._follow()  # its engine is lost
            return
        gather, starts = self._starts[lease.group]
        oldest = min((turn.version for one in outcome.value for turn in one.turns if turn.version >= 0), default=lease.version)
        self._act(self.scheduler.finished(lease, oldest, not outcome.faulted))
        if self.scheduler.holds(lease.group):
            gather.waiting.discard(lease.group)
            gather.found |= {trajectory.id: trajectory for trajectory in outcome.value}
            gather.homes |= {start.group: lease.engine for start in starts}
            gather.counts.update(outcome.counts)
            gather.lost = gather.lost or outcome.lost
            for trajectory, result in outcome.faults:
                self.hooks.on_fault(trajectory, result)

    # -- batches ----------------------------------------------------------------------------------------------------------------------

    def _form(self) -> None:
        """Pass on the batches that are complete, in order."""
        while self._gathers and self._gathers[0].brought is not None:
            gather = self._gathers.pop(0)
            self._act(self.scheduler.formed(gather.batch))
            dropped = set().union(*gather.groups.values()) if gather.groups else set()
            collected = gather.collected(gather.counts, gather.lost, self.source.say)
            sound = [trajectory for trajectory in collected.trajectories if planned_group(trajectory.group) not in dropped]
            drops = drop_metrics(self._told, self.scheduler.counts)
            self._told = dict(self.scheduler.counts)
            self.formed.put(Formed(replace(collected, trajectories=sound), gather.mark, drops))
