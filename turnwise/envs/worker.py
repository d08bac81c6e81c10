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
import resource
import time
import traceback
from collections.abc import Callable
from multiprocessing import spawn
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
importing_main = False  # true while the user's script is imported again: a pool made in that time would start workers without end


class Setup(NamedTuple):
    """What a worker is told first. `main` is set where the factory lives in the user's script, which is then imported here too;
    `memory_mb` limits what a process may allocate."""

    parent: int
    factory: bytes
    main: dict[str, Any] | None
    memory_mb: int | None = None


class Request(NamedTuple):
    """Start one slot (`task` is set, and `state` where it starts from a snapshot), step it (`action` is set), or keep where it stands
    (neither is set). `silent` marks the replay of a slot whose worker was lost: its answer is checked, not handed out."""

    slot: int
    task: Task | None = None
    seed: int = 0
    action: str | None = None
    silent: bool = False
    state: bytes | None = None


class Failure(NamedTuple):
    """What came of a request that failed: one line, the rest, and the part of it that is the user's own."""

    message: str
    traceback: str = ""
    own_lines: str = ""


class Kept(NamedTuple):
    """A snapshot; `state` is None where the environment has none to give."""

    state: bytes | None


Answer = Transition | Failure | Kept  # to a reset and a restore too: their transition holds the observation where the agent stands


def failure(error: BaseException) -> Failure:
    """The answer for an exception that an environment raised."""
    lines = error.lines if isinstance(error, BadAnswer) else own_lines(error)
    return Failure(one_line(error), "".join(traceback.format_exception(error)), lines)


class OpenedEnv(NamedTuple):
    """An environment of a slot."""

    env: Any
    can: Capabilities


class GuardedEnvs:
    """The environments of one process by slot, created at their first start, and again after a fault."""

    def __init__(self, factory: Callable[[], Any]):
        self._factory = factory
        self._envs: dict[int, OpenedEnv] = {}

    def reset(self, slot: int, task: Task, seed: int) -> Answer:
        try:
            env = self._open(slot).env
            return Transition(read_observation(env.reset(task, seed), env))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an environment that calls sys.exit must not end the run
            return self._drop(slot, error)

    def restore(self, slot: int, state: bytes) -> Answer:
        """Start a slot from a snapshot."""
        try:
            env, can = self._open(slot)
            if can.restore is None:
                raise TurnwiseError(f"{type(env).__name__} has no restore(state): play the actions again instead")
            return Transition(read_observation(can.restore(state), env, "restore"))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._drop(slot, error)

    def snapshot(self, slot: int) -> Answer:
        """The state of a slot's attempt."""
        try:
            env, can = self._envs[slot]
            return Kept(None if can.snapshot is None else read_snapshot(can.snapshot(), env))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._drop(slot, error)

    def _open(self, slot: int) -> OpenedEnv:
        if slot not in self._envs:
            env = self._factory()
            self._envs[slot] = OpenedEnv(env, Capabilities(env))
        return self._envs[slot]

    def step(self, slot: int, action: str) -> Answer:
        try:
            env = self._envs[slot].env
            return read_transition(env.step(action), env)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._drop(slot, error)

    def _drop(self, slot: int, error: BaseException) -> Failure:
        answer = failure(error)
        self._close(self._envs.pop(slot, None))
        return answer

    def load_ahead(self, task: Task) -> None:
        """Load what a reset to this task will need, if the environment can. An error is one of that reset, which has it too."""
        first = next(iter(self._envs.values()), None)
        if first is not None and first.can.load_ahead is not None:
            with contextlib.suppress(Exception):
                first.can.load_ahead(task)

    def close(self) -> None:
        for slot in list(self._envs):
            self._close(self._envs.pop(slot))

    @staticmethod
    def _close(opened: OpenedEnv | None) -> None:
        # Closing is a courtesy: an environment that is broken already may well fail here too.
        with contextlib.suppress(Exception, SystemExit, GeneratorExit):
            if opened is not None:
                opened.can.close()


def serve(connection: Connection) -> None:
    """A fresh interpreter: it is told what to play, then plays."""
    setup: Setup = pickle.loads(connection.recv_bytes())
    limit = None if setup.memory_mb is None else setup.memory_mb * MEGABYTE
    play_requests(connection, setup.parent, lambda: _factory(setup), limit, setup.memory_mb)


def play_requests(
    connection: Connection, parent: int, load: Callable[[], Callable[[], Any]], limit: int | None, memory_mb: int | None
) -> None:
    """Answer requests in order until None comes or the pool's process ends. `limit` is in bytes; `memory_mb` is for messages."""
    guard.adopt_orphans()
    inbox: SimpleQueue[Request | None] = SimpleQueue()
    Thread(target=_read, args=(connection, inbox, parent), daemon=True).start()
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    envs = GuardedEnvs(load())
    connection.send_bytes(b"started")
    busy = 0.0
    while (request := inbox.get()) is not None:
        began = time.perf_counter()
        answer = _pack(_explained(perform(envs, request), memory_mb))
        busy += time.perf_counter() - began
        connection.send_bytes(answer + BUSY.pack(busy))
    envs.close()
    guard.end_descendants()
    connection.close()


def _factory(setup: Setup) -> Callable[[], Any]:
    global importing_main
    try:
        if setup.main is not None:
            importing_main = True
            spawn.prepare(setup.main)
            importing_main = False
        return pickle.loads(setup.factory)  # type: ignore[no-any-return]
    except BaseException as error:
        reason = failure(error)

        def cannot_make() -> Any:
            raise RuntimeError(f"the worker cannot make the environment: {reason.message}\n{reason.traceback}")

        return cannot_make


def perform(envs: GuardedEnvs, request: Request) -> Answer:
    """What comes of one request."""
    if request.action is not None:
        return envs.step(request.slot, request.action)
    if request.task is None:
        return envs.snapshot(request.slot)
    if request.state is not None:
        return envs.restore(request.slot, request.state)
    return envs.reset(request.slot, request.task, request.seed)


def method_of(request: Request) -> str:
    """The environment's method that a request calls."""
    return "step" if request.action is not None else "snapshot" if request.task is None else "restore" if request.state else "reset"


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
