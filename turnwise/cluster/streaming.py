"""Groups that join and leave while others are being played: what an actor does if batches are collected ahead of the learner.

One collector plays all groups at the same time. A new group joins as soon as there are slots; a finished one leaves at once. New weights
are applied between two steps: rows in the middle of a response continue with them, and every turn keeps the version that drew its first
token.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count

from turnwise.cluster.work import Outcome, Parts, Spec, died, generated
from turnwise.collect.games import game_of
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory
from turnwise.envs.pool import EnvResult

KEPT = 8  # batches whose snapshots are kept


@dataclass
class GroupJob:
    """Attempts of one group, for a batch."""

    batch: int
    spec: Spec
    starts: Sequence[Start]
    done: Future[Outcome] = field(default_factory=Future)
    found: dict[int, list[Trajectory]] = field(default_factory=dict)
    faults: list[tuple[Trajectory, EnvResult]] = field(default_factory=list)
    left: int = 0


class Stream:
    """The collector of an actor, and what it needs to give every attempt back to its group. `more` gives the next group, or None if there
    is none now."""

    def __init__(self, parts: Parts, spec: Spec, more: Callable[[], GroupJob | None]):
        self.parts, self.collector = parts, parts.collector(spec)
        self.collector.hand_over = self._over
        self._more = more
        self._numbers = count()
        self._waiting: deque[Start] = deque()
        self._jobs: dict[int, tuple[GroupJob, Start]] = {}  # by the number that an attempt has here
        self._known: dict[tuple[int, int | str], Trajectory] = {}
        self._told: Counter[str] = Counter()

    def play(self) -> None:
        """Until nothing is left."""
        self.collector.stream(self._take)

    def on_fault(self, trajectory: Trajectory, result: EnvResult) -> None:
        """A fault of an attempt, which belongs to a group."""
        if (entry := self._jobs.get(game_of(int(trajectory.id)))) is not None:
            entry[0].faults.append((trajectory, result))

    def fail(self, error: BaseException) -> None:
        """Everything that is being played has failed."""
        for job, _ in self._jobs.values():
            if not job.done.done():
                job.done.set_exception(error)

    def _take(self) -> Start | None:
        """The next attempt of the groups that wait; None if there is none now."""
        while not self._waiting and (job := self._more()) is not None:
            self._recognise(job)
            job.left = len(job.starts)
            for start in job.starts:
                number = next(self._numbers)  # numbers of different batches may be equal
                self._jobs[number] = job, start
                self._waiting.append(replace(start, number=number))
            if not job.starts:
                job.done.set_result(Outcome([]))
        return self._waiting.popleft() if self._waiting else None

    def _recognise(self, job: GroupJob) -> None:
        """Parents of branches came back as copies: they get what was kept of the originals."""
        for start in job.starts:
            if start.branch is not None:
                copy = start.branch.trajectory
                original = self._known.get((job.batch, copy.id))
                if original is not None and generated(original) == generated(copy):
                    self.collector.trails.adopt(copy, original)
        for key in [key for key in self._known if key[0] < job.batch - KEPT]:
            self.collector.trails.drop(self._known.pop(key))

    def _over(self, start: Start, trajectories: list[Trajectory]) -> None:
        job, planned = self._jobs.pop(start.number)
        job.left -= 1
        for trajectory in trajectories:
            trajectory.id = planned.number + int(trajectory.id) - start.number  # a further player keeps its distance
            if self.collector.snapshots:
                self._known[job.batch, trajectory.id] = trajectory
        if trajectories:
            job.found[planned.number] = trajectories
        if job.left == 0 and not job.done.done():
            new = Counter({name: value - self._told[name] for name, value in self.collector.counts.items()})
            self._told = Counter(self.collector.counts)
            faulted = any(died(result) for _, result in job.faults)
            trajectories = [trajectory for start in job.starts for trajectory in job.found.get(start.number, ())]
            job.done.set_result(Outcome(trajectories, new, self.collector.lost, job.faults, faulted, self.parts.environments))
