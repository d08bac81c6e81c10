"""Where batches come from. A source runs a plan, collects what it asks for, and hands out what it returns with the version that sampled it.

    source = LocalSource(slots, groups=16, collector=collectors.training, engine=lambda: engine)
    for collected in source.batches(plan):
        …                                     # signals, credit, update
        source.publish(version)               # the engine forgets what it computed with the old weights

A plan is a generator of attempts: it yields what to attempt next, gets the finished trajectories back, and returns those to learn from. It
never sees attempts that a fault has ended, or that have no turn: the source leaves them out and counts them (`faults`). All
attempts of one batch are made by one collector, so the engine's cache and the snapshots of earlier attempts serve its branches.

`LocalSource` collects in this process and on demand: nothing is collected ahead of the learner, so the same seed gives the same weights.
The source of a cluster (cluster/source.py) has the same methods. A recipe may name a source of its own: a class that derives from
`OwnSource`, gets the run's source, and changes what it hands out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple, Protocol

from turnwise.config.kinds import SOURCE
from turnwise.config.options import Registry
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Stop, Trajectory, Turn, sound
from turnwise.data.tasks import Task
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots
from turnwise.util.errors import TurnwiseError
from turnwise.util.metrics import numbers

MOST_PREFETCHED = 64  # tasks for which an environment loads something before they are played


class Mark(NamedTuple):
    """How far a run has come in its tasks: what a checkpoint keeps of task slots and plan."""

    used: int
    branches: dict[str, int]
    plan: dict[str, Any]


def mark_of(slots: TaskSlots, plan: Plan) -> Mark:
    """Where task slots and plan are now."""
    return Mark(slots.used, slots.state(), plan.state())


class Collects(Protocol):
    """A collector, as far as a source knows it: it makes attempts. `counts` says more about them for the log, and `lost` why the first
    branch was lost."""

    counts: Counter[str]
    lost: str

    def run(self, starts: Sequence[Start]) -> list[Trajectory]: ...


class Published(Protocol):
    """An engine, as far as a source knows it."""

    version: int
    sleeps: bool

    def sleep(self) -> None: ...

    def publish(self, version: int) -> None: ...


@dataclass(frozen=True)
class Collected:
    """What one batch is made of. `version` is that of the weights that sampled it; `tasks` are the attempted tasks by id, data included;
    `complete` is false if the run was cancelled before the end; `seconds` is how long it took; `prefetched`: it was collected while others
    were learned from, and `seconds` is how long the learner waited for it."""

    trajectories: list[Trajectory]
    tasks: Mapping[str, Task]
    counts: dict[str, float] = field(default_factory=dict)
    version: int = -1
    complete: bool = True
    seconds: float = 0.0
    prefetched: bool = False

    def metrics(self) -> dict[str, float]:
        """What is logged about it, by `collect/NAME`."""
        counts = summarise(self.trajectories) | self.counts
        return numbers("collect", counts)


@dataclass
class Gathering:
    """A batch of a plan that is being gathered, round by round. `brought` is what the plan returned in the end."""

    rounds: Rounds
    version: int
    tasks: dict[str, Task] = field(default_factory=dict, init=False)
    faults: int = field(default=0, init=False)
    branches: int = field(default=0, init=False)
    brought: Gathered | None = field(default=None, init=False)

    def advance(self, finished: list[Trajectory] | None = None) -> Sequence[Start] | None:
        """The attempts of the next round, now that those of the round before have `finished`; None at the end."""
        try:
            if finished is None:
                starts = next(self.rounds)
            else:
                attempts = sound(finished)
                self.faults += len(finished) - len(attempts)
                starts = self.rounds.send(attempts)
        except StopIteration as end:
            self.brought = end.value
            return None
        self.tasks |= {start.task.id: start.task for start in starts}
        self.branches += sum(start.branch is not None for start in starts)
        return starts

    def collected(self, counts: Mapping[str, float], lost: str, say: Callable[[str], None]) -> Collected:
        """The batch. `counts` are those of the collectors that have played it; `lost` says why its first branch was lost."""
        assert self.brought is not None
        told = {**self.brought.counts, "faults": float(self.faults), **counts}
        lost_branches = told.pop("lost_branches", 0.0)
        if self.branches:
            told |= {"branches": float(self.branches), "lost_branches": float(lost_branches)}
        if lost:
            say(f"warning: {lost_branches:g} of {self.branches} branches were lost. The first: {lost}")
        return Collected(distinct(self.brought.trajectories), self.tasks, told, self.version)


class Source(Protocol):
    """What the loop asks of a source. `batches` yields one batch after another, until there are n or the run is cancelled, and calls
    `begins` before each. `publish`: the learner's weights have this version now. `prefetch` prepares the next tasks while the learner
    works, and calls `pause` between small parts. `metrics` are logged with a batch, `mark` is how far the run has come with the batch that
    was handed out last."""

    def batches(self, plan: Plan, n: int | None = None, begins: Callable[[], None] = ...) -> Iterator[Collected]: ...

    def publish(self, version: int) -> None: ...

    def prefetch(self, pause: Callable[[], object]) -> None: ...

    def metrics(self, batch: Batch) -> dict[str, float]: ...

    def mark(self, plan: Plan) -> Mark: ...


class OwnSource:
    """The base of sources that a recipe names: whatever a class does not do itself, the run's own source does. Keyword-only parameters of
    its constructor are its options."""

    def __init__(self, source: Source):
        self.source = source

    def batches(self, plan: Plan, n: int | None = None, begins: Callable[[], None] = lambda: None) -> Iterator[Collected]:
        return self.source.batches(plan, n, begins)

    def publish(self, version: int) -> None:
        self.source.publish(version)

    def prefetch(self, pause: Callable[[], object]) -> None:
        self.source.prefetch(pause)

    def metrics(self, batch: Batch) -> dict[str, float]:
        return self.source.metrics(batch)

    def mark(self, plan: Plan) -> Mark:
        return self.source.mark(plan)


sources: Registry[type[OwnSource]] = Registry("source", code=SOURCE)
source = sources.register


@dataclass
class LocalSource:
    """Collects in this process. `collector` makes a fresh collector for each batch, and `engine` is called when the first one is needed.
    `check` looks at what a collector returned (for faults, say) and passes it on; `say` takes one-line notices; `cancelled` ends a batch
    between two rounds of a plan. `load` prepares the environment for a task that comes soon. `rests`: the engine frees its memory while a
    batch is learned from."""

    slots: TaskSlots
    groups: int
    collector: Callable[[], Collects]
    engine: Callable[[], Published]
    check: Callable[[list[Trajectory]], list[Trajectory]] = lambda trajectories: trajectories
    say: Callable[[str], None] = lambda text: None
    cancelled: Callable[[], bool] = lambda: False
    load: Callable[[Task], None] | None = None
    rests: bool = False

    @property
    def version(self) -> int:
        """The version of the weights that sample now."""
        return self.engine().version

    def batches(self, plan: Plan, n: int | None = None, begins: Callable[[], None] = lambda: None) -> Iterator[Collected]:
        """One batch after another, each collected when it is asked for."""
        for _ in count() if n is None else range(n):
            if self.cancelled():
                return
            begins()
            start = time.monotonic()
            collected = self.collect(plan)
            collected = replace(collected, seconds=time.monotonic() - start)
            if self.rests and self.engine().sleeps:
                self.engine().sleep()
            yield collected
            del collected  # its tokens are many: they are gone before the next ones come

    def publish(self, version: int) -> None:
        """The learner's weights have this version now."""
        if version < self.version:
            raise TurnwiseError(f"version {version} was published after version {self.version}: versions only grow")
        self.engine().publish(version)

    def prefetch(self, pause: Callable[[], object]) -> None:
        """Let the environment load what the next tasks need. This has no effect on any result."""
        if self.load is not None:
            for task in self.slots.coming(min(self.groups, MOST_PREFETCHED)):
                self.load(task)
                pause()

    def metrics(self, batch: Batch) -> dict[str, float]:
        """What a source logs about a batch with its columns, in addition to its counts: nothing, where all is done in one process."""
        return {}

    def mark(self, plan: Plan) -> Mark:
        """How far the run has come with the batch that was handed out last."""
        return mark_of(self.slots, plan)

    def collect(self, plan: Plan) -> Collected:
        """The next batch of a plan."""
        collector, version = self.collector(), self.version
        self.slots.begin()
        batch = Gathering(plan.gather(self.slots, self.groups), version)
        starts = batch.advance()
        while starts is not None:
            finished = self.check(collector.run(starts))
            if self.cancelled():
                batch.rounds.close()
                return Collected(finished, batch.tasks, {}, version, complete=False)
            starts = batch.advance(finished)
        return batch.collected(collector.counts, collector.lost, self.say)


def distinct(trajectories: list[Trajectory]) -> list[Trajectory]:
    """The trajectories as they are. Two with the same id raise an error: a plan that returns stored ones must give them new ids."""
    seen: set[int | str] = set()
    for trajectory in trajectories:
        if trajectory.id in seen:
            raise TurnwiseError(f"the plan returned two trajectories with the id {trajectory.id!r}: give a stored one a new id")
        seen.add(trajectory.id)
    return trajectories


def summarise(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What every batch reports: success, reward, length, validity, stop reasons."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    n = max(len(trajectories), 1)
    return {
        "trajectories": len(trajectories),
        "turns": len(turns),
        "success": sum(t.success for t in trajectories) / n,
        "reward": sum(t.reward for t in trajectories) / n,
        "length": len(turns) / n,
        "invalid": sum(not turn.valid for turn in turns) / max(len(turns), 1),
        "prompt_tokens": sum(len(turn.prompt_ids) for turn in turns),
        "response_tokens": sum(len(turn.response_ids) for turn in turns),
        "rewards": _parts(turns, n),
    } | {f"stop/{stop.value}": sum(t.stop is stop for t in trajectories) / n for stop in Stop if any(t.stop is stop for t in trajectories)}


def _parts(turns: Sequence[Turn], trajectories: int) -> dict[str, float]:
    """The parts of the reward by name, per attempt; empty if the environment's reward is the only one."""
    sums: dict[str, float] = {}
    for turn in turns:
        for name, value in turn.info.get("rewards", {}).items():
            sums[name] = sums.get(name, 0.0) + value
    return {name: value / trajectories for name, value in sums.items()}
