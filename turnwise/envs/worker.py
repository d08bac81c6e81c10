"""A worker process of the pool: plays the environments of some slots, one request after another.

A thread reads the requests, so the pool can always write; the main thread plays. The same thread ends the process, with all that the
environments have started in it, when the pool's process is gone: also while an environment hangs.

A limit on memory is the kernel's own (RLIMIT_DATA: what a process has allocated, not what it has merely reserved, so that a Java machine
or a library that maps large files still starts). It holds for the worker and, each for itself, for every process that it starts.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing import spawn
from multiprocessing.connection import Connection
from queue import SimpleQueue
from struct import Struct
from threading import Thread
from typing import Any, NamedTuple

from turnwise.data.tasks import Task
from turnwise.envs.guarded import Answer, Failure, GuardedEnvs, failure

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


def serve(connection: Connection) -> None:
    """A fresh interpreter: it is told what to play, then plays."""
    setup: Setup = pickle.loads(connection.recv_bytes())
    limit = None if setup.memory_mb is None else setup.memory_mb * MEGABYTE
    play_requests(connection, setup.parent, lambda: _factory(setup), limit, setup.memory_mb)


def play_requests(
    connection: Connection, parent: int, load: Callable[[], Callable[[], Any]], limit: int | None, memory_mb: int | None
) -> None:
    """Answer requests in order until None comes or the pool's process ends. `limit` is in bytes; `memory_mb` is for messages."""
    inbox: SimpleQueue[Request | None] = SimpleQueue()
    Thread(target=_read, args=(connection, inbox, parent), daemon=True).start()
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    seats = GuardedEnvs(load())
    connection.send_bytes(b"started")
    busy = 0.0
    while (request := inbox.get()) is not None:
        began = time.perf_counter()
        answer = _pack(_explained(perform(seats, request), memory_mb))
        busy += time.perf_counter() - began
        connection.send_bytes(answer + BUSY.pack(busy))
    seats.close()
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


def perform(seats: GuardedEnvs, request: Request) -> Answer:
    """What comes of one request."""
    if request.action is not None:
        return seats.step(request.slot, request.action)
    if request.task is None:
        return seats.snapshot(request.slot)
    if request.state is not None:
        return seats.restore(request.slot, request.state)
    return seats.reset(request.slot, request.task, request.seed)


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
                    end_group()
            request = pickle.loads(connection.recv_bytes())
            inbox.put(request)
            if request is None:
                return
    except (EOFError, OSError):
        end_group()


def end_group() -> None:
    """End this process and whatever its environments started. The worker leads a process group of its own."""
    os.killpg(0, signal.SIGKILL)
