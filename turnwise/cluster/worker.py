"""An engine's process: engine, agent, environments and collector in one actor, so that no turn needs a call between processes.

One thread plays, because neither engines nor pools are thread-safe; the methods that Ray calls run in other threads and pass it work,
which it does in order of arrival. New weights are applied between two steps of the current work.

Work belongs to a session: what one collector would do in one process, as a list of calls. The engine's cache and the snapshots of earlier
attempts last as long as the session. If the actor that played a session was lost, another one repeats all of its calls: seeds are part of
them, so it gets the same tokens.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from turnwise.cluster.streaming import GroupJob, Stream
from turnwise.cluster.work import Call, Outcome, Parts, Spec, Work, died, generated, portable
from turnwise.collect.hooks import Hooks
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory
from turnwise.data.tasks import Task
from turnwise.envs.pool import EnvResult

T = TypeVar("T")
CLOSES = 5.0  # seconds for the parts to be closed
LOOKS = 5.0  # seconds between two looks at whether the playing thread lives
RESTS = 60.0  # seconds that the playing thread sleeps at most


@dataclass
class _Job:
    work: Work
    done: Future[Outcome] = field(default_factory=Future)


class Session:
    """One collector, and the calls that it has made."""

    def __init__(self, work: Work, parts: Parts):
        self.name, self.parts, self.collector = work.session, parts, parts.collector(work.spec)
        self.made = 0
        self.value: Any = None
        self.faults: list[tuple[Trajectory, EnvResult]] = []
        self._known: dict[int | str, Trajectory] = {}

    def go_on(self, work: Work) -> Outcome:
        """Make the calls that were not made yet."""
        for call in work.calls[self.made :]:
            self.value = self._make(call)
            self.made += 1
        faults, self.faults = self.faults, []
        value, self.value = self.value, None
        counts = Counter(self.collector.counts)
        return Outcome(value, counts, self.collector.lost, faults, environments=self.parts.environments)

    def _make(self, call: Call) -> Any:
        if call.name in ("generate", "openings"):
            return getattr(self.parts, call.name)(*call.arguments)
        (starts,) = call.arguments
        for start in starts:
            self._recognise(start)
        trajectories = self.collector.run(starts)
        if self.collector.snapshots:
            self._known |= {trajectory.id: trajectory for trajectory in trajectories}
        return trajectories

    def _recognise(self, start: Start) -> None:
        """The parent of a branch came back as a copy: it gets what was kept of the original."""
        if start.branch is None:
            return
        copy = start.branch.trajectory
        original = self._known.get(copy.id)
        if original is not None and (original.task, original.seed, generated(original)) == (copy.task, copy.seed, generated(copy)):
            self.collector.trails.adopt(copy, original)


class RolloutWorker:
    """The actor. `make` builds its parts, in the thread that plays; `retries` is how often work is repeated if an environment's process
    dies."""

    def __init__(self, make: Callable[[Hooks], Parts], number: int = 0, retries: int = 2):
        self.number, self._retries = number, retries
        self._wake = threading.Condition()
        self._jobs: deque[_Job | GroupJob] = deque()
        self._weights: deque[tuple[int, Any, Future[int]]] = deque()
        self._coming: deque[Task] = deque()  # that will be played soon
        self._cancelled = self._over = False
        self._turns = self._ended = 0
        self._session: Session | None = None
        self._stream: Stream | None = None
        self._made: Future[None] = Future()
        self._player = threading.Thread(target=self._live, args=(make,), name="player", daemon=True)
        self._player.start()

    # -- called by the driver -----------------------------------------------------------------------------------------------------

    def ready(self) -> None:
        """Wait until the parts are made."""
        self._answer(self._made)

    def run(self, work: Work) -> Outcome:
        """Do the work of a session, and wait for it."""
        return self._answer(self._add(_Job(work)))

    def group(self, batch: int, spec: Spec, starts: Sequence[Start]) -> Outcome:
        """Play the attempts of a group among those of others, and wait for them."""
        return self._answer(self._add(GroupJob(batch, spec, starts)))

    def publish(self, version: int, weights: Any) -> int:
        """Apply these weights as soon as possible, and wait for it."""
        done: Future[int] = Future()
        with self._wake:
            self._weights.append((version, weights, done))
            self._wake.notify()
        return self._answer(done)

    def load_ahead(self, tasks: Sequence[Task]) -> None:
        """These tasks come soon: while there is nothing else to do, the environment loads what they need."""
        with self._wake:
            self._coming = deque(tasks)
            self._wake.notify()

    def status(self) -> dict[str, float]:
        """Numbers that grow while there is progress."""
        return {"turns": self._turns, "ended": self._ended, "environments": self._parts.environments if self._made.done() else 0.0}

    def cancel(self) -> None:
        """End the current work and all waiting work, between two turns."""
        self._cancelled = True

    def close(self) -> None:
        """End the playing thread after its current work, and close the parts."""
        with self._wake:
            self._cancelled = self._over = True
            self._wake.notify()
        self._player.join(CLOSES)

    def _answer(self, done: Future[T]) -> T:
        """What the playing thread answers. The driver limits how long that may take, by progress; a thread that has ended never answers."""
        while True:
            try:
                return done.result(timeout=LOOKS)
            except TimeoutError:
                if not self._player.is_alive() and not done.done():
                    raise RuntimeError("the thread that plays has ended without an answer") from None

    def _add(self, job: _Job | GroupJob) -> Future[Outcome]:
        with self._wake:
            self._cancelled = False
            self._jobs.append(job)
            self._wake.notify()
        return job.done

    # -- the thread that plays ------------------------------------------------------------------------------------------------------

    def _live(self, make: Callable[[Hooks], Parts]) -> None:
        try:
            self._parts = make(Hooks(cancelled=self._between, on_turn=self._turned, on_end=self._ends, on_fault=self._fault))
            self._made.set_result(None)
        except BaseException as error:
            self._made.set_exception(portable(error))
            return
        try:
            while (job := self._next()) is not None:
                if isinstance(job, GroupJob):
                    self._play_groups(job)
                    continue
                try:
                    job.done.set_result(self._perform(job.work))
                except BaseException as error:
                    job.done.set_exception(portable(error))
                del job  # with its trajectories: they are freed as soon as they were sent
        finally:
            self._parts.close()

    def _next(self) -> _Job | GroupJob | None:
        """The next job; weights are applied while it waits, and what it will need is prepared. None: there will be no more."""
        while True:
            with self._wake:
                while not (self._jobs or self._weights or self._over or self._coming):
                    self._wake.wait(RESTS)
                if self._over:
                    return None
                if self._jobs and not self._weights:
                    self._coming.clear()
                    return self._jobs.popleft()
            if self._weights:
                self._apply()
            elif self._coming:
                self._parts.load_ahead(self._coming.popleft())

    def _apply(self) -> None:
        """Apply the newest weights; older ones that wait are skipped."""
        while self._weights:
            version, weights, done = self._weights.popleft()
            try:
                if not self._weights:
                    self._session = None  # its cache is gone
                    self._parts.publish(version, weights)
                done.set_result(version)
            except BaseException as error:
                done.set_exception(portable(error))

    def _play_groups(self, first: GroupJob) -> None:
        """Play groups until none is left, or until other work is next in line."""
        with self._wake:
            self._jobs.appendleft(first)
        self._session = None
        if self._stream is None:
            self._stream = Stream(self._parts, first.spec, self._next_group)
        try:
            self._stream.play()
        except BaseException as error:
            self._stream.fail(portable(error))
            self._stream = None

    def _next_group(self) -> GroupJob | None:
        with self._wake:
            if not self._jobs or not isinstance(self._jobs[0], GroupJob) or self._over:
                return None
            job = self._jobs.popleft()
        assert isinstance(job, GroupJob)
        return job

    def _perform(self, work: Work) -> Outcome:
        """Do the work of a session."""
        for again in range(self._retries + 1):
            if self._session is None or self._session.name != work.session or self._session.made >= len(work.calls):
                self._session = Session(work, self._parts)
            outcome = self._session.go_on(work)
            if self._cancelled or again == self._retries or not any(died(result) for _, result in outcome.faults):
                return outcome
            self._session = None  # an environment's process has died, which is not the policy's fault: repeat the work
        raise AssertionError

    def _between(self) -> bool:
        """Called between two steps: groups continue with new weights at once, sessions get them at their end."""
        if self._session is None and self._weights:
            self._apply()
        return self._cancelled

    def _turned(self, trajectory: Trajectory) -> None:
        self._turns += 1

    def _ends(self, trajectory: Trajectory) -> None:
        self._ended += 1

    def _fault(self, trajectory: Trajectory, result: EnvResult) -> None:
        if self._session is not None:
            self._session.faults.append((trajectory, result))
        elif self._stream is not None:
            self._stream.on_fault(trajectory, result)
