"""Where batches come from on a cluster, and the engines of a cluster as one engine."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from turnwise.cluster.metrics import age_metrics, group_ages, idle_metrics, ratio_metrics
from turnwise.cluster.prefetch import Formed, Prefetcher
from turnwise.cluster.weights import Sender
from turnwise.cluster.workers import RolloutWorkers
from turnwise.collect.source import MOST_PREFETCHED, Collected, LocalSource, Mark
from turnwise.data.batch import Batch
from turnwise.engines.base import WeightReceiver
from turnwise.methods.planning import Plan
from turnwise.util.metrics import numbers

T = TypeVar("T")
PATIENCE = 0.5  # seconds between two looks at whether the run is cancelled


class RemoteEngine(WeightReceiver):
    """The engines of all rollout workers as one receiver of weights, and access to the workers: directly, or through the thread that owns
    them while batches are prefetched. Attempts go through a collector. `waits`: the learner's weights may not change before all engines
    have read them."""

    sleeps = False

    def __init__(self, workers: RolloutWorkers, sender: Sender, waits: bool = False):
        self.workers, self.version = workers, 0
        self.prefetcher: Prefetcher | None = None
        self.seconds = 0.0  # that the last weights took
        self._sender, self._waits = sender, waits

    def sleep(self) -> None:
        """The engines of a cluster are not on the learner's memory."""

    def do(self, work: Callable[[], T]) -> T:
        """Do this in the thread that owns the workers."""
        return work() if self.prefetcher is None else self.prefetcher.do(work)

    def publish(self, version: int, weights: Any = None) -> None:
        """The learner's weights have this version now. Every engine gets them before it plays again, or as soon as possible if it is
        playing for a batch ahead."""
        self.version, began = version, time.perf_counter()
        self._sender.publish(version)

        def work() -> None:
            self.workers.publish(version, self._sender.send)
            if self._waits:
                self.workers.settle()
            if self.prefetcher is not None:
                self.prefetcher.published(version)

        self.do(work)
        self.seconds = time.perf_counter() - began

    def refresh(self) -> None:
        """The learner's weights have changed."""
        self.publish(self.version)

    def close(self) -> None:
        if self.prefetcher is not None:
            self.prefetcher.stop()
        self.workers.close()
        self._sender.close()


@dataclass
class ClusterSource:
    """Collects with the rollout workers of a cluster: on demand, or ahead of the learner if `prefetcher` makes the thread for it from the
    plan, the number of the first batch, and how many there are. `on_demand` collects one batch at a time; its collector is remote."""

    on_demand: LocalSource
    engine: Callable[[], RemoteEngine]
    prefetcher: Callable[[Any, int, int | None], Prefetcher] | None = None
    _mark: Mark | None = field(default=None, init=False, repr=False)
    _drops: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _waited: float = field(default=0.0, init=False, repr=False)
    _since: float = field(default_factory=time.monotonic, init=False, repr=False)

    @property
    def version(self) -> int:
        """The version of the weights that sample now."""
        return self.on_demand.version

    def batches(self, plan: Plan, n: int | None = None, begins: Callable[[], None] = lambda: None) -> Iterator[Collected]:
        """One batch after another."""
        return self._on_demand(plan, n, begins) if self.prefetcher is None else self._prefetched(plan, n, begins)

    def _on_demand(self, plan: Plan, n: int | None, begins: Callable[[], None]) -> Iterator[Collected]:
        for collected in self.on_demand.batches(plan, n, begins):
            self._waited = collected.seconds
            yield collected

    def _prefetched(self, plan: Plan, n: int | None, begins: Callable[[], None]) -> Iterator[Collected]:
        engine = self.engine()
        assert self.prefetcher is not None
        prefetcher = engine.prefetcher = self.prefetcher(plan, self.version, n)
        try:
            for _ in count() if n is None else range(n):
                begins()
                start = time.monotonic()
                formed = self._next(prefetcher)
                if formed is None:
                    return
                self._mark, self._drops = formed.mark, formed.drops
                self._waited = time.monotonic() - start
                yield replace(formed.collected, seconds=self._waited, prefetched=True)
        finally:
            prefetcher.stop()
            engine.prefetcher = None

    def _next(self, prefetcher: Prefetcher) -> Formed | None:
        """The next batch that is formed; None if the run is cancelled."""
        while not self.on_demand.cancelled():
            try:
                formed = prefetcher.formed.get(timeout=PATIENCE)
            except queue.Empty:
                if not prefetcher.alive and prefetcher.formed.empty():
                    return None
                continue
            if isinstance(formed, BaseException):
                raise formed
            return formed
        return None

    def publish(self, version: int) -> None:
        """The learner's weights have this version now."""
        self.on_demand.publish(version)

    def prefetch(self, pause: Callable[[], object]) -> None:
        """Let the workers load what the next tasks need, while the learner learns. Ahead of the learner they never rest."""
        if self.prefetcher is None:
            source = self.on_demand
            self.engine().workers.load_ahead(source.slots.coming(min(source.groups, MOST_PREFETCHED)))

    def mark(self, plan: Plan) -> Mark:
        """The progress of the run with the batch that was handed out last. What was collected beyond it is attempted again."""
        return self._mark if self._mark is not None else self.on_demand.mark(plan)

    def metrics(self, batch: Batch) -> dict[str, float]:
        """How old the batch is and how far the policy has moved since, what was dropped, and which parts idled."""
        now, engine = time.monotonic(), self.engine()
        metrics: dict[str, Any] = {"seconds_publish": engine.seconds}
        if self._mark is not None:
            versions = [turn.version for trajectory in batch.trajectories for turn in trajectory.turns]
            metrics |= age_metrics(group_ages(versions, batch.rollouts.group, self.version)) | self._drops
            if batch.has("token.old_logprob"):
                metrics |= ratio_metrics(batch.column("token.old_logprob") - batch.column("token.logprob"))
        seconds, self._since = now - self._since, now
        worked = {"learner": seconds - self._waited, **engine.do(engine.workers.worked)}
        return numbers("cluster", metrics | {"idle": idle_metrics(worked, seconds)})
