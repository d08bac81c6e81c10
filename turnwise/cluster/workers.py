"""The engines of a run, seen from the driver: actors that are started, given weights, given work, and replaced when they are lost.

Every wait has a deadline. A member is lost if Ray reports it, if its start or its weights fail, or if it has made no progress for
`deadline` seconds. It is killed and started again; the new one gets the current weights before any work. Its work goes to any free member,
at most `retries` times more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.cluster.start import import_ray, one_line
from turnwise.cluster.work import Outcome, Work
from turnwise.collect.hooks import Hooks
from turnwise.data.rollouts import Trajectory
from turnwise.data.tasks import Task
from turnwise.util.errors import TurnwiseError
from turnwise.util.garbage import rare_searches

LOOKS = 1.0  # seconds between two looks at the progress of a member
CLOSES = 6.0  # seconds for a member to end
PATIENCE = 0.2  # seconds that one wait for Ray takes at most


@dataclass
class Worker:
    """One engine. `state`: starting, updating (weights are on their way), up, gone. `ref` is what it is starting or updating with, `since`
    when it last made progress, `seen` the numbers that it last reported."""

    number: int
    handle: Any
    ref: Any
    state: str = "starting"
    since: float = field(default_factory=time.monotonic)
    seen: dict[str, Any] = field(default_factory=dict)
    look: Any = None
    looked: float = 0.0
    refs: set[Any] = field(default_factory=set)  # the work that it does
    lives: int = 0  # how often it was started again
    failures: int = 0  # starts that failed since it was last up
    version: int = -1  # of its weights
    began: float = 0.0  # of the work that it does
    worked: float = 0.0  # seconds that it had work, without the work that it does
    played: float = 0.0  # seconds that its environments have played in this life, as it last reported them
    played_before: float = 0.0  # the same in the lives before


class RolloutWorkers:
    """`start` starts the actor of a number. `send` gives one member weights, and returns a reference to wait for; None before the first
    ones."""

    def __init__(self, start: Callable[[int], Any], size: int, deadline: float, retries: int = 2, hooks: Hooks | None = None):
        self.size, self.deadline, self.retries = size, deadline, retries
        self.hooks = hooks or Hooks()
        self.counts: dict[str, float] = {"lost_engines": 0.0, "repeated_work": 0.0}
        self.version = -1
        self._start = start
        self._send: Callable[[Any], Any] | None = None
        self._begun = False
        self._told: dict[str, float] = {}  # the seconds that `worked` has returned
        self.members = [self._started(number) for number in range(size)]

    # -- weights --------------------------------------------------------------------------------------------------------------------

    def publish(self, version: int, send: Callable[[Any], Any]) -> None:
        """From now on these are the weights: `send` gives them to the actor of a member. Those that are up get them now, others when they
        have started."""
        self.version, self._send = version, send
        for member in self.members:
            if member.state in ("up", "updating"):
                self._update(member)

    def settle(self) -> None:
        """Wait until every member that lives has the current weights."""
        while any(member.state in ("starting", "updating") for member in self.members):
            self.step([])

    def _update(self, member: Worker) -> None:
        if self._send is None:
            member.state = "up"
            return
        try:
            member.ref, member.state, member.since = self._send(member.handle), "updating", time.monotonic()
        except Exception as error:
            self.lose(member, one_line(error))

    # -- work -----------------------------------------------------------------------------------------------------------------------

    def run(self, works: Sequence[Work], homes: Sequence[int]) -> list[Outcome | None]:
        """The outcome of each work, in order; None for one that was lost more often than `retries` allows, or was cancelled before it
        began. `homes` are the members that do it if they are there."""
        outcomes: list[Outcome | None] = [None] * len(works)
        waiting, tries = deque(range(len(works))), [0] * len(works)
        running: dict[Any, tuple[int, Worker]] = {}
        cancelled = False
        if not self._begun:  # a member that is only slower to start keeps its work
            self.settle()
            self._begun = True
        while waiting or running:
            self._hand_out(works, homes, waiting, running)
            if self.hooks.cancelled() and not cancelled:
                cancelled, waiting = True, deque()
                for _, member in running.values():
                    member.handle.cancel.remote()
            for ref in self.step(list(running)):
                if (outcome := self.result(running[ref][1], ref)) is not None:
                    outcomes[running.pop(ref)[0]] = outcome
            for ref in [ref for ref, (_, member) in running.items() if ref not in member.refs]:  # its member was lost
                k, _ = running.pop(ref)
                tries[k] += 1
                if tries[k] <= self.retries and not cancelled:
                    self.counts["repeated_work"] += 1
                    waiting.append(k)
        return outcomes

    def _hand_out(self, works: Sequence[Work], homes: Sequence[int], waiting: deque[int], running: dict[Any, tuple[int, Worker]]) -> None:
        """Give members work."""
        for member in self.members:
            if member.state != "up" or not waiting or any(busy is member for _, busy in running.values()):
                continue
            assigned = [k for k in waiting if homes[k] == member.number]
            orphans = [k for k in waiting if self.members[homes[k]].state in ("starting", "gone")]
            if mine := assigned or orphans:
                waiting.remove(mine[0])
                ref = self.employ(member, member.handle.run.remote(works[mine[0]]))
                running[ref] = mine[0], member

    def load_ahead(self, tasks: Sequence[Task]) -> None:
        """Tell each member which of these tasks will be its own: those of new groups in turn. It has no effect on any result."""
        for member in self.members:
            if member.state == "up" and (assigned := list(tasks[member.number :: self.size])):
                member.handle.load_ahead.remote(assigned)

    def employ(self, member: Worker, ref: Any) -> Any:
        """Give the member this work."""
        now = time.monotonic()
        if not member.refs:
            member.since = member.looked = member.began = now
        member.refs.add(ref)
        return ref

    def result(self, member: Worker, ref: Any) -> Outcome | None:
        """The result of finished work; None if its member is lost."""
        if ref not in member.refs:
            return None
        member.refs.discard(ref)
        member.since = time.monotonic()
        if not member.refs:
            member.worked += member.since - member.began
        try:
            with rare_searches():
                outcome: Outcome = import_ray().get(ref, timeout=self.deadline)
        except Exception as error:
            self._failed(error, member)
            return None
        member.played = max(member.played, outcome.environments)
        return outcome

    def _failed(self, error: Exception, member: Worker) -> None:
        """Work has failed: the member is lost, or the error is the user's and ends the run."""
        import_ray()
        from ray.exceptions import RayActorError, RayError, RayTaskError

        if isinstance(error, RayTaskError) and not isinstance(error, RayActorError):
            cause = error.cause
            raise cause if isinstance(cause, TurnwiseError) else TurnwiseError(f"engine {member.number} failed: {cause}") from None
        if not isinstance(error, RayError):
            raise error
        self.lose(member, one_line(error))

    # -- members --------------------------------------------------------------------------------------------------------------------

    def step(self, refs: list[Any]) -> list[Any]:
        """Wait briefly. Returns the references that are done. Members advance to their next state, and lost ones are replaced."""
        ray = import_ray()
        changing = {member.ref: member for member in self.members if member.state in ("starting", "updating")}
        looks = {member.look: member for member in self.members if member.look is not None}
        awaited = [*refs, *changing, *looks]
        if not awaited:
            time.sleep(PATIENCE)
            self._check()
            return []
        done, _ = ray.wait(awaited, num_returns=1, timeout=PATIENCE)
        if done and len(awaited) > 1:
            done, _ = ray.wait(awaited, num_returns=len(awaited), timeout=0)
        for ref in done:
            if ref in changing and changing[ref].ref is ref:
                self._moved_on(changing[ref])
            elif ref in looks:
                self._looked_at(looks[ref])
        self._check()
        mine = set(refs)
        return [ref for ref in done if ref in mine]

    def _moved_on(self, member: Worker) -> None:
        """A member has started, or has its weights now."""
        try:
            answer = import_ray().get(member.ref, timeout=self.deadline)
        except Exception as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, TurnwiseError):
                raise cause from None
            self.lose(member, one_line(error))
            return
        member.since = time.monotonic()
        if member.state == "starting":
            self._update(member)
        else:
            member.state, member.version, member.failures = "up", int(answer), 0

    def _looked_at(self, member: Worker) -> None:
        try:
            seen = import_ray().get(member.look, timeout=LOOKS)
        except Exception:
            member.look = None  # its work will say what happened
            return
        if (seen["turns"], seen["ended"]) != (member.seen.get("turns"), member.seen.get("ended")):
            member.since = time.monotonic()
        member.played = max(member.played, seen.get("environments", 0.0))
        new = seen["ended"] - member.seen.get("ended", 0)
        member.look, member.seen = None, seen
        for _ in range(new):
            self.hooks.on_end(Trajectory(0, 0))  # it comes later, with the result

    def _check(self) -> None:
        now = time.monotonic()
        for member in self.members:
            if member.state == "gone":
                continue
            waits = member.state != "up" or bool(member.refs)
            if waits and now - member.since > self.deadline:
                what = {"starting": "did not start", "updating": "did not take its weights", "up": "made no progress"}[member.state]
                self.lose(member, f"it {what} within {self.deadline:g} seconds (cluster.deadline)", again=member.state != "starting")
            elif member.refs and member.look is None and now - member.looked > LOOKS:
                member.look, member.looked = member.handle.status.remote(), now

    def lose(self, member: Worker, why: str, again: bool = True) -> None:
        """Kill what is left of a member and start it again. Without `again`, the others continue without it."""
        ray = import_ray()
        self.counts["lost_engines"] += 1
        try:
            ray.kill(member.handle, no_restart=True)
        except Exception as error:
            self.hooks.say(f"engine {member.number} could not be ended: {one_line(error)}")
        if member.refs:
            member.worked += time.monotonic() - member.began
        member.refs, member.look, member.version = set(), None, -1
        member.played_before, member.played = member.played_before + member.played, 0.0
        member.failures += member.state != "up"
        if not again or member.failures > self.retries:
            member.state = "gone"
            self.hooks.say(f"warning: engine {member.number} is gone: {why}")
            if all(other.state == "gone" for other in self.members):
                raise TurnwiseError(
                    f"no engine is left: {why}. What was learned is in the last checkpoint; look at `turnwise cluster check` and resume"
                )
            return
        self.hooks.say(f"engine {member.number} was lost and is started again: {why}")
        new = self._started(member.number)
        member.handle, member.ref, member.state, member.since, member.seen = new.handle, new.ref, new.state, new.since, {}
        member.lives += 1

    def worked(self) -> dict[str, float]:
        """Seconds since the last call in which each member had work, and those that its environments have played, per process."""
        now, total = time.monotonic(), dict[str, float]()
        for member in self.members:
            total[f"engine_{member.number}"] = member.worked + (now - member.began if member.refs else 0.0)
            total[f"environments_{member.number}"] = member.played_before + member.played
        seconds = {part: value - self._told.get(part, 0.0) for part, value in total.items()}
        self._told = total
        return seconds

    def _started(self, number: int) -> Worker:
        handle = self._start(number)
        return Worker(number, handle, handle.ready.remote())

    def close(self) -> None:
        """End all members. Those that are up close what they have opened first."""
        ray = import_ray()
        ends = [member.handle.close.remote() for member in self.members if member.state in ("up", "updating")]
        for end in ends:
            try:
                ray.get(end, timeout=CLOSES)
            except Exception:  # it is gone, or does not answer: it is killed in any case
                continue
        for member in self.members:
            try:
                ray.kill(member.handle, no_restart=True)
            except Exception:  # it is gone already
                continue
