"""Where batches come from on a cluster, and the engines of a cluster as one engine."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from turnwise.cluster.ahead import Ahead
from turnwise.cluster.crew import Crew
from turnwise.cluster.metrics import age_metrics, group_ages, idle_metrics, ratio_metrics, seconds_metrics
from turnwise.cluster.weights import Sender
from turnwise.cluster.work import Outcome, Work
from turnwise.collect.source import Collected, Gathers, LocalSource, Mark
from turnwise.data.batch import Batch
from turnwise.engines.reports import COLUMNS
from turnwise.util.errors import TurnwiseError

PATIENCE = 0.5  # seconds between two looks at whether the run is cancelled


class Access:
    """Access to the engines: directly, or through the thread that owns them while batches are collected ahead."""

    def __init__(self, crew: Crew):
        self.crew, self.size, self.hears = crew, crew.size, crew.hears
        self.ahead: Ahead | None = None

    def do(self, work: Callable[[], Any]) -> Any:
        return work() if self.ahead is None else self.ahead.do(work)

    def run(self, works: Sequence[Work], homes: Sequence[int]) -> list[Outcome | None]:
        found: list[Outcome | None] = self.do(lambda: self.crew.run(works, homes))
        return found

    def publish(self, version: int, send: Callable[[Any], Any], waits: bool = False) -> None:
        """Give all engines these weights. `waits`: until they have them."""

        def work() -> None:
            self.crew.publish(version, send)
            if waits:
                self.crew.settle()
            if self.ahead is not None:
                self.ahead.published(version)

        self.do(work)

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.stop()
        self.crew.close()


class RemoteEngine:
    """All engines as one, to publish weights. Attempts go through a collector. `waits`: the learner's weights may not change before all
    engines have read them. With `later` it is `settle` that waits for that, which is called before the learner goes on; until then, engines
    read while the driver does other things."""

    def __init__(self, access: Access, sender: Sender, waits: bool = False, later: bool = False):
        self.access, self.version, self.reports, self.pending = access, 0, tuple(COLUMNS), 0
        self.seconds = 0.0  # that the last weights took
        self._sender, self._waits, self._later = sender, waits, later

    def publish(self, version: int, weights: Any = None) -> None:
        """The learner's weights have this version now. Every engine gets them before it plays again, or as soon as possible if it is
        playing for a batch ahead."""
        self._publish(version, self._waits and not self._later)

    def refresh(self) -> None:
        """The learner's weights have changed, and may change again at once."""
        self._publish(self.version, self._waits)

    def _publish(self, version: int, waits: bool) -> None:
        self.version, began = version, time.perf_counter()
        self._sender.publish(version)
        self.access.publish(version, self._sender.send, waits)
        self.seconds = time.perf_counter() - began

    def settle(self) -> None:
        """From now on the learner's weights may change."""
        if self._waits and self._later:
            self.access.do(self.access.crew.updated)

    def submit(self, requests: Sequence[Any]) -> None:
        raise TurnwiseError("the engines of a cluster take whole attempts, not requests")

    def poll(self, wait: bool = True) -> list[Any]:
        return []

    def release(self, sequence: int) -> None: ...

    def close(self) -> None:
        self.access.close()
        self._sender.close()


@dataclass
class ClusterSource(LocalSource):
    """Collects with the engines of a cluster: on demand with a staleness of 0, otherwise ahead of the learner. `begin_ahead` starts the
    thread for it, with the plan, the number of the first batch, and how many there are."""

    staleness: int = 0
    begin_ahead: Callable[[Any, int, int | None], Ahead] | None = None
    access: Access | None = None
    ranks_worked: Callable[[], Mapping[str, float]] = dict  # seconds of work of each learner rank since the last call
    _mark: Mark | None = field(default=None, init=False, repr=False)
    _drops: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _waited: float = field(default=0.0, init=False, repr=False)
    _since: float = field(default_factory=time.monotonic, init=False, repr=False)
    _spent: dict[str, float] = field(default_factory=dict, init=False, repr=False)  # by the engines, before this batch

    def batches(
        self, plan: Gathers, staleness: int | None = None, n: int | None = None, begins: Callable[[], None] = lambda: None
    ) -> Iterator[Collected]:
        bound = self.staleness if staleness is None else staleness
        if bound == 0 or self.begin_ahead is None or self.access is None:
            for collected in super().batches(plan, 0, n, begins):
                self._waited = collected.seconds
                yield collected
            return
        first = self.version
        ahead = self.access.ahead = self.begin_ahead(plan, first, n)
        try:
            for batch in count(first) if n is None else range(first, first + n):
                begins()
                start = time.monotonic()
                found = self._next(ahead)
                if found is None:
                    return
                self._mark, self._drops = ahead.marks.pop(batch), ahead.drops.pop(batch)
                self._waited = time.monotonic() - start
                yield replace(found, seconds=self._waited, ahead=True)
        finally:
            ahead.stop()
            self.access.ahead = None

    def collect(self, plan: Gathers) -> Collected:
        if self.access is not None:
            self._spent = dict(self.access.crew.seconds)
        found = super().collect(plan)
        if isinstance(self.engine, RemoteEngine):
            self.engine.settle()
        return found

    def _next(self, ahead: Ahead) -> Collected | None:
        """The next batch that is formed; None if the run is cancelled."""
        while not self.cancelled():
            try:
                found = ahead.formed.get(timeout=PATIENCE)
            except queue.Empty:
                if not ahead.alive and ahead.formed.empty():
                    return None
                continue
            if isinstance(found, BaseException):
                raise found
            return found
        return None

    def mark(self, plan: Any) -> Mark:
        """The progress of the run with the batch that was handed out last. What was collected beyond it is attempted again."""
        return self._mark if self._mark is not None else super().mark(plan)

    def metrics(self, batch: Batch) -> dict[str, float]:
        """How old the batch is and how far the policy has moved since, what was dropped, and which parts idled."""
        rollouts, now = batch.rollouts, time.monotonic()
        if self.access is None:
            return {}
        found: dict[str, Any] = {}
        if self._mark is not None:
            versions = [turn.version for trajectory in batch.trajectories for turn in trajectory.turns]
            found |= age_metrics(group_ages(versions, rollouts.group, self.version)) | self._drops
            if batch.has("token.old_logprob"):
                found |= ratio_metrics(batch.column("token.old_logprob") - batch.column("token.logprob"))
        crew = self.access.crew
        work, played = self.access.do(lambda: (crew.worked(), crew.environments()))
        idle: dict[str, Any] = idle_metrics(work, self._since, now, {**played, **self.ranks_worked()})["idle"]
        waited = self._waited / max(now - self._since, 1e-9)
        self._since = now
        spent, self._spent = self._spent, dict(self.access.crew.seconds)
        found |= seconds_metrics(spent, self._spent, getattr(self.engine, "seconds", 0.0))
        return _flat("cluster", found | {"idle": idle | {"learner": min(waited, 1.0)}})


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Nested numbers under one prefix."""
    found: dict[str, float] = {}
    for name, value in values.items():
        found |= _flat(f"{prefix}/{name}", value) if isinstance(value, Mapping) else {f"{prefix}/{name}": float(value)}
    return found
