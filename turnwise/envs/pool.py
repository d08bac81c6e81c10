"""The pool: many environments behind one interface, in this process or in worker processes.

    with Pool("alfworld", size=64, workers=4, timeout=60) as pool:
        pool.submit_reset(0, task, seed=7)
        for result in pool.results():            # waits for at least one, returns all that are ready
            pool.submit_step(result.slot, "look")

No environment can harm the others: an exception, a dead process and an exceeded time limit are results with a `fault`, and the slot plays
again after its next reset. Seeds, tasks and results do not depend on the number of workers. In this process (`workers=0`) a call is almost
free, but a time limit cannot be enforced. A pool is not thread-safe.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import TracebackType
from typing import Any, NamedTuple

from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.playing import playing
from turnwise.envs.registry import portable
from turnwise.envs.worker import Answer, Ask, GuardedEnvs, Request, Reset, Restore, SavedState, Snapshot
from turnwise.envs.workers import WorkerSlots
from turnwise.util.errors import TurnwiseError

__all__ = ["Ask", "EnvResult", "Fault", "Pool", "Reset", "Restore", "Snapshot"]


class Fault(StrEnum):
    """Why an environment stopped a trajectory."""

    ERROR = "environment fault"
    TIMEOUT = "environment timeout"


class EnvResult(NamedTuple):
    """The result of one request. After a reset or a restore, `transition` holds the observation where the agent stands, reward 0, not done.
    After a snapshot there is no transition: `state` is the saved state, None if the environment has no snapshots. With a `fault` there
    is neither: `message` is one line, `traceback` the rest, `own_lines` its lines in the user's files."""

    slot: int
    transition: Transition | None
    fault: Fault | None = None
    message: str = ""
    traceback: str = ""
    own_lines: str = ""
    state: bytes | None = None

    @property
    def observation(self) -> Observation:
        if self.transition is None:
            raise TurnwiseError(f"slot {self.slot} has no observation: {self.stop_reason or 'this is the result of a snapshot'}")
        return self.transition.observation

    @property
    def over(self) -> bool:
        """Whether the episode ended here, by the environment or by a fault."""
        return self.fault is not None or (self.transition is not None and self.transition.done)

    @property
    def stop_reason(self) -> str:
        """The fault as a stop reason: `environment fault: …` or `environment timeout`; empty if there was none."""
        if self.fault is None:
            return ""
        return f"{self.fault.value}: {self.message}" if self.fault is Fault.ERROR else self.fault.value


class Pool:
    """`size` environments in slots 0 … size − 1. `factory` is a registered name, `path/to/my_env.py:MyEnv`, or a function that makes an
    environment; `options` go to a named one. `workers=0` plays in this process; `timeout` (seconds per request, or None) needs workers, and
    so does `memory_mb` (the memory limit of a worker, and of each process it starts)."""

    def __init__(
        self,
        factory: str | Callable[[], Any],
        size: int,
        *,
        workers: int = 0,
        timeout: float | None = 60.0,
        options: Mapping[str, Any] | None = None,
        memory_mb: int | None = None,
    ):
        if size < 1 or workers < 0:
            raise TurnwiseError(f"a pool needs at least one slot and a non-negative number of workers, got size={size}, workers={workers}")
        if timeout is not None and not timeout > 0:
            raise TurnwiseError(f"the time limit of a pool must be a positive number of seconds or None, got {timeout!r}")
        if memory_mb is not None and (workers == 0 or memory_mb < 1):
            raise TurnwiseError(f"memory_mb={memory_mb} limits worker processes: give a positive number, and workers of at least 1")
        if isinstance(factory, str):
            factory = portable(factory, options or {})  # an invalid name or option is an error here, not a fault in every slot
        elif options:
            raise TurnwiseError("options are for an environment that is given by name: bind them to your function instead")
        self.size = size
        self._here: GuardedEnvs | None = None
        self._away: WorkerSlots | None = None
        if workers == 0:
            self._here = GuardedEnvs(factory)
        else:
            self._away = WorkerSlots(factory, min(workers, size), math.inf if timeout is None else timeout, memory_mb)
        self._playing = [False] * size
        self._waiting: set[int] = set()
        self._done: list[EnvResult] = []
        self._open = True
        self._at = [("", 0)] * size  # the task and the number of turns of each slot in this process
        self._busy = 0.0  # seconds that environments of this process have played

    @property
    def pending(self) -> int:
        """Number of requests whose result has not been returned yet."""
        return len(self._waiting)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers; none if the environments play in this process."""
        return self._away.pids if self._away else []

    @property
    def busy(self) -> float:
        """Seconds that environments have played so far: resets, steps, snapshots. With workers, those of one process on average."""
        return self._away.busy if self._away else self._busy

    def reset(self, slot: int, task: Task, seed: int = 0) -> EnvResult:
        """Start a task in a slot and wait for its first observation."""
        return self._asked(slot, Reset(task, seed))

    def step(self, slot: int, action: str) -> EnvResult:
        """Play one action in a slot and wait for its result."""
        return self._asked(slot, action)

    def snapshot(self, slot: int) -> EnvResult:
        """Take a snapshot of a slot's attempt and wait for it: `state` of the result."""
        return self._asked(slot, Snapshot())

    def restore(self, slot: int, task: Task, seed: int, state: bytes) -> EnvResult:
        """Start a slot from a snapshot, and wait for the observation where the agent stands."""
        return self._asked(slot, Restore(task, seed, state))

    def _asked(self, slot: int, ask: Ask) -> EnvResult:
        if self._here is None:
            self.submit(slot, ask)
            return self._await(slot)
        self._admit(slot, ask)
        return self._settle(slot, self._play(self._here, slot, ask))

    def submit(self, slot: int, ask: Ask) -> None:
        """Send a request; `results` returns its result."""
        self._admit(slot, ask)
        self._waiting.add(slot)
        if self._away is not None:
            self._away.submit(Request(slot, ask))
        elif self._here is not None:
            self._done.append(self._settle(slot, self._play(self._here, slot, ask)))

    def submit_reset(self, slot: int, task: Task, seed: int = 0) -> None:
        """Start a task in a slot; `results` returns its first observation."""
        self.submit(slot, Reset(task, seed))

    def submit_step(self, slot: int, action: str) -> None:
        """Play one action in a slot; `results` returns its result."""
        self.submit(slot, action)

    def results(self, timeout: float | None = None) -> list[EnvResult]:
        """All results that are ready, in the order of arrival. Waits for the first one, at most `timeout` seconds (0: does not wait); empty
        if nothing is pending or the time is over."""
        if self._away is not None:
            until = math.inf if timeout is None else time.monotonic() + timeout
            self._take(-math.inf if self._done else until)
        done, self._done = self._done, []
        self._waiting.difference_update(result.slot for result in done)
        return done

    def reset_all(self, starts: Iterable[tuple[int, Task, int]]) -> list[EnvResult]:
        """Start tasks in many slots, given as (slot, task, seed), and wait for all: results in the order requested."""
        return self._all((slot, Reset(task, seed)) for slot, task, seed in starts)

    def step_all(self, actions: Iterable[tuple[int, str]]) -> list[EnvResult]:
        """Play one action in each of many slots, given as (slot, action), and wait for all: results in the order requested."""
        return self._all(actions)

    def _all(self, asks: Iterable[tuple[int, Ask]]) -> list[EnvResult]:
        slots = []
        for slot, ask in asks:
            self.submit(slot, ask)
            slots.append(slot)
        return [self._await(slot) for slot in slots]

    def _admit(self, slot: int, ask: Ask) -> None:
        if not 0 <= slot < self.size:
            raise TurnwiseError(f"slot {slot} of a pool with the slots 0 to {self.size - 1}")
        if not self._open:
            raise TurnwiseError("this pool is closed")
        if slot in self._waiting:
            raise TurnwiseError(f"slot {slot} has a request whose result was not taken yet: call results() first")
        if not self._playing[slot] and isinstance(ask, str | Snapshot):
            raise EpisodeOver(f"slot {slot} has no running episode: reset it first")

    def _play(self, here: GuardedEnvs, slot: int, ask: Ask) -> Answer:
        began = time.perf_counter()
        if isinstance(ask, str):
            task, turn = self._at[slot]
            self._at[slot] = task, turn + 1
            method = "step"
        else:
            if not isinstance(ask, Snapshot):
                self._at[slot] = ask.task.id, 0
            task, turn = self._at[slot]
            method = type(ask).__name__.lower()
        with playing.inside(method, task, turn):
            answer = here.perform(slot, ask)
        self._busy += time.perf_counter() - began
        return answer

    def _settle(self, slot: int, answer: Answer, timed_out: bool = False) -> EnvResult:
        if isinstance(answer, Transition):
            self._playing[slot] = not answer.done
            return EnvResult(slot, answer)
        if isinstance(answer, SavedState):
            return EnvResult(slot, None, state=answer.state)
        self._playing[slot] = False
        return EnvResult(slot, None, Fault.TIMEOUT if timed_out else Fault.ERROR, answer.message, answer.traceback, answer.own_lines)

    def _take(self, until: float) -> None:
        if self._away is not None:
            self._done += [self._settle(*answer) for answer in self._away.gather(until)]

    def _await(self, slot: int) -> EnvResult:
        while True:
            for index, result in enumerate(self._done):
                if result.slot == slot:
                    self._waiting.discard(slot)
                    return self._done.pop(index)
            self._take(math.inf)

    def load_ahead(self, task: Task) -> None:
        """Let an environment of this process load what a reset to this task will need. Workers do without."""
        if self._here is not None and self._open:
            self._here.load_ahead(task)

    def close(self) -> None:
        """Close the environments and end the workers. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        if self._here is not None:
            with playing.inside("close"):
                self._here.close()
        if self._away is not None:
            self._away.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
