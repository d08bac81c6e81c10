"""A worker process of the pool: plays the environments of some slots, one request after another.

A thread reads the requests, so the pool can always write; the main thread plays. The same thread ends the process, with all that the
environments have started in it, when the pool's process is gone: also while an environment hangs.

A limit on memory is the kernel's own (RLIMIT_DATA: what a process has allocated, not what it has merely reserved, so that a Java machine
or a library that maps large files still starts). It holds for the worker and, each for itself, for every process that it starts.

`GuardedEnvs` are environments in numbered slots of one process: whatever one of them raises is a fault of its slot alone. The pool also
plays them in its own process, so both ways behave alike.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from struct import Struct
from threading import Thread
from typing import Any, NamedTuple

from turnwise.data.tasks import Task
from turnwise.envs import guard
from turnwise.envs.answers import BadAnswer, read_observation, read_snapshot, read_transition
from turnwise.envs.base import Transition
from turnwise.envs.blame import one_line, own_lines
from turnwise.envs.capabilities import Capabilities
from turnwise.util.errors import TurnwiseError

PARENT_CHECK_SECONDS = 1.0
MEGABYTE = 2**20
BUSY = Struct("<d")  # after every answer: seconds that this process has played since it started


class Setup(NamedTuple):
    """What a worker is told first. `memory_mb` limits what a process may allocate."""

    parent: int
    factory: bytes
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """The request to start a task."""

    task: Task
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Restore:
    """The request to start from a snapshot, which was taken in an attempt at this task with this seed."""

    task: Task
    seed: int
    state: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The request for a snapshot of the running attempt."""


Ask = Reset | Restore | Snapshot | str  # a text is an action


class Request(NamedTuple):
    """What a slot is asked. `silent` marks the replay of a slot whose worker was lost: its answer is checked, not handed out."""

    slot: int
    ask: Ask
    silent: bool = False


class Failure(NamedTuple):
    """What came of a request that failed: one line, the rest, and the part of it that is the user's own."""

    message: str
    traceback: str = ""
    own_lines: str = ""


class SavedState(NamedTuple):
    """A snapshot; `state` is None where the environment has none to give."""

    state: bytes | None


Answer = Transition | Failure | SavedState  # to a reset and a restore too: their transition holds the observation where the agent stands


def failure(error: BaseException) -> Failure:
    """The answer for an exception that an environment raised."""
    lines = error.lines if isinstance(error, BadAnswer) else own_lines(error)
    return Failure(one_line(error), "".join(traceback.format_exception(error)), lines)


class GuardedEnvs:
    """The environments of one process by slot, created at their first start, and again after a fault."""

    def __init__(self, factory: Callable[[], Any]):
        self._factory = factory
        self._envs: dict[int, Any] = {}

    def perform(self, slot: int, ask: Ask) -> Answer:
        """What comes of one request."""
        try:
            return self._perform(slot, ask)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an environment that calls sys.exit must not end the run
            answer = failure(error)
            self._close(slot)
            return answer

    def _perform(self, slot: int, ask: Ask) -> Answer:
        if isinstance(ask, str):
            env = self._envs[slot]
            return read_transition(env.step(ask), env)
        if isinstance(ask, Snapshot):
            env = self._envs[slot]
            snapshot = Capabilities(env).snapshot
            return SavedState(None if snapshot is None else read_snapshot(snapshot(), env))
        if slot not in self._envs:
            self._envs[slot] = self._factory()
        env = self._envs[slot]
        if isinstance(ask, Reset):
            return Transition(read_observation(env.reset(ask.task, ask.seed), env))
        if (restore := Capabilities(env).restore) is None:
            raise TurnwiseError(f"{type(env).__name__} has no restore(state): play the actions again instead")
        return Transition(read_observation(restore(ask.state), env, "restore"))

    def load_ahead(self, task: Task) -> None:
        """Load what a reset to this task will need, if the environment can. An error is one of that reset, which has it too."""
        if self._envs and (load := Capabilities(next(iter(self._envs.values()))).load_ahead) is not None:
            with contextlib.suppress(Exception):
                load(task)

    def close(self) -> None:
        for slot in list(self._envs):
            self._close(slot)

    def _close(self, slot: int) -> None:
        # Closing is a courtesy: an environment that is broken already may well fail here too.
        with contextlib.suppress(Exception, SystemExit, GeneratorExit):
            if slot in self._envs:
                Capabilities(self._envs.pop(slot)).close()


def serve(connection: Connection) -> None:
    """Answer requests in order until None comes or the pool's process ends. What is played comes first."""
    setup: Setup = pickle.loads(connection.recv_bytes())
    guard.adopt_orphans()
    inbox: SimpleQueue[Request | None] = SimpleQueue()
    Thread(target=_read, args=(connection, inbox, setup.parent), daemon=True).start()
    if setup.memory_mb is not None:
        import resource  # Windows has none, and no workers

        limit = setup.memory_mb * MEGABYTE
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    envs = GuardedEnvs(_factory(setup.factory))
    connection.send_bytes(b"started")
    busy = 0.0
    while (request := inbox.get()) is not None:
        began = time.perf_counter()
        answer = _pack(_explained(envs.perform(request.slot, request.ask), setup.memory_mb))
        busy += time.perf_counter() - began
        connection.send_bytes(answer + BUSY.pack(busy))
    envs.close()
    guard.end_descendants()
    connection.close()


def _factory(packed: bytes) -> Callable[[], Any]:
    try:
        return pickle.loads(packed)  # type: ignore[no-any-return]
    except BaseException as error:
        reason = failure(error)

        def cannot_make() -> Any:
            raise RuntimeError(f"the worker cannot make the environment: {reason.message}\n{reason.traceback}")

        return cannot_make


def _explained(answer: Answer, memory_mb: int | None) -> Answer:
    if memory_mb is not None and isinstance(answer, Failure) and answer.message.startswith("MemoryError"):
        return Failure(f"{answer.message} (the memory limit of a worker is {memory_mb} MB)", answer.traceback, answer.own_lines)
    return answer


def _pack(answer: Answer) -> bytes:
    try:
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # an environment may put anything into info
        return pickle.dumps(failure(TypeError(f"the answer cannot be sent to another process: {error}")))


def _read(connection: Connection, inbox: SimpleQueue[Request | None], parent: int) -> None:
    try:
        while True:
            # A fork of the pool's process can hold the other end open after it has died, hence the second question.
            while not connection.poll(PARENT_CHECK_SECONDS):
                if os.getppid() != parent:
                    guard.end_own_tree()
            request = pickle.loads(connection.recv_bytes())
            inbox.put(request)
            if request is None:
                return
    except (EOFError, OSError):
        guard.end_own_tree()
