"""Where batches come from. A source runs a plan, collects what it asks for, and hands out what it returns with the version that sampled it.

    source = LocalSource(places, groups=16, collector=system.collector, engine=system.engine)
    for batch in source.batches(plan):
        …                                     # signals, credit, update
        source.publish(version)               # the engine forgets what it computed with the old weights

A plan is a generator of attempts: it yields what to attempt next, gets the finished trajectories back, and returns those to learn from. It
never sees attempts that a fault has ended, or that have no turn: the source leaves them out and counts them (`faults`). All
attempts of one batch are made by one collector, so the engine's cache and the snapshots of earlier attempts serve its branches.

`LocalSource` collects in this process and on demand: nothing is collected ahead of the learner (staleness 0), so the same seed gives the
same weights. A source that collects elsewhere has the same two methods.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple, Protocol

from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, sound
from turnwise.data.tasks import Task
from turnwise.util.errors import TurnwiseError


class Mark(NamedTuple):
    """How far a run has come in its tasks: what a checkpoint keeps of places and plan."""

    used: int
    branches: dict[str, int]
    plan: dict[str, Any]


def mark_of(places: Any, plan: Any) -> Mark:
    """Where places and plan are now."""
    return Mark(places.used, places.state(), plan.state())


class Brought(Protocol):
    """What a plan returns in the end: the trajectories to learn from, and counts for the log."""

    trajectories: list[Trajectory]
    counts: dict[str, float]


class Gathers(Protocol):
    """A plan, as far as a source knows it."""

    def gather(self, places: Any, groups: int) -> Generator[Sequence[Start], list[Trajectory], Brought]: ...


class Collects(Protocol):
    """A collector, as far as a source knows it: it makes attempts. `policy` and `counts` say more about them for the log."""

    policy: Any
    counts: Counter[str]
    lost: str

    def run(self, starts: Sequence[Start]) -> list[Trajectory]: ...


class Published(Protocol):
    """An engine, as far as a source knows it."""

    version: int

    def publish(self, version: int, weights: Any = None) -> None: ...


@dataclass(frozen=True)
class Collected:
    """What one batch is made of. `version` is that of the weights that sampled it; `tasks` are the attempted tasks by id, data included;
    `complete` is false if the run was cancelled before the end; `seconds` is how long it took; `ahead`: it was collected while others were
    learned from, and `seconds` is how long the learner waited for it."""

    trajectories: list[Trajectory]
    tasks: Mapping[str, Task]
    counts: dict[str, float] = field(default_factory=dict)
    version: int = -1
    complete: bool = True
    seconds: float = 0.0
    ahead: bool = False


@dataclass
class LocalSource:
    """Collects in this process. `collector` makes a fresh collector for each batch; `heard` checks what a collector returned (for faults,
    say) and passes it on; `say` takes one-line notices; `cancelled` ends a batch between two rounds of a plan."""

    places: Any
    groups: int
    collector: Callable[[], Collects]
    engine: Published
    heard: Callable[[list[Trajectory]], list[Trajectory]] = lambda trajectories: trajectories
    say: Callable[[str], None] = lambda text: None
    cancelled: Callable[[], bool] = lambda: False

    @property
    def version(self) -> int:
        """The version of the weights that sample now."""
        return self.engine.version

    def batches(
        self, plan: Gathers, staleness: int = 0, n: int | None = None, begins: Callable[[], None] = lambda: None
    ) -> Iterator[Collected]:
        """One batch after another, each collected when it is asked for, until there are n or the run is cancelled. `begins` is called
        before each."""
        if staleness != 0:
            raise TurnwiseError(f"staleness {staleness}: a source in this process collects on demand and never runs ahead; use 0")
        for _ in count() if n is None else range(n):
            if self.cancelled():
                return
            begins()
            start = time.monotonic()
            found = self.collect(plan)
            found = replace(found, seconds=time.monotonic() - start)
            yield found
            del found  # its tokens are many: they are gone before the next ones come

    def publish(self, version: int, weights: Any = None) -> None:
        """The learner's weights have this version now."""
        if version < self.version:
            raise TurnwiseError(f"version {version} was published after version {self.version}: versions only grow")
        self.engine.publish(version, weights)

    def metrics(self, batch: Batch) -> dict[str, float]:
        """What a source logs about a batch with its columns, in addition to its counts: nothing, where all is done in one process."""
        return {}

    def mark(self, plan: Any) -> Mark:
        """How far the run has come with the batch that was handed out last."""
        return mark_of(self.places, plan)

    def collect(self, plan: Gathers) -> Collected:
        """The next batch of a plan."""
        collector, version = self.collector(), self.version
        tasks: dict[str, Task] = {}
        branches = faults = 0
        if hasattr(self.places, "begin"):
            self.places.begin()
        rounds = plan.gather(self.places, self.groups)
        found: list[Trajectory] | None = None
        while True:
            try:
                starts = next(rounds) if found is None else rounds.send(found)
            except StopIteration as end:
                brought: Brought = end.value
                break
            tasks |= {start.task.id: start.task for start in starts}
            branches += sum(start.branch is not None for start in starts)
            finished = self.heard(collector.run(starts))
            if self.cancelled():
                rounds.close()
                return Collected(finished, tasks, {}, version, complete=False)
            found = sound(finished)
            faults += len(finished) - len(found)
        counts = {**brought.counts, "faults": float(faults)}
        counts |= dict(getattr(collector.policy, "counts", {}))
        counts |= {name: float(value) for name, value in collector.counts.items() if name != "lost_branches"}
        if branches:
            counts |= {"branches": float(branches), "lost_branches": float(collector.counts["lost_branches"])}
        if collector.lost:
            self.say(f"warning: {collector.counts['lost_branches']} of {branches} branches were lost. The first: {collector.lost}")
        return Collected(distinct(brought.trajectories), tasks, counts, version)


def distinct(trajectories: list[Trajectory]) -> list[Trajectory]:
    """The trajectories as they are. Two with the same id raise an error: a plan that returns stored ones must give them new ids."""
    seen: set[int | str] = set()
    for trajectory in trajectories:
        if trajectory.id in seen:
            raise TurnwiseError(f"the plan returned two trajectories with the id {trajectory.id!r}: give a stored one a new id")
        seen.add(trajectory.id)
    return trajectories
