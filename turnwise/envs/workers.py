"""Environments in worker processes: the slow ones, the leaky ones, and those that may crash or hang.

Slot s lives in worker s mod k and a worker plays its requests in order, so what happens in a slot does not depend on the number of
workers. When a worker dies or exceeds the time limit, the request it was playing gets the fault and a new worker takes over. The other
slots of the lost worker go on: tasks and seeds (or the snapshot that they started from) fix an episode, so their actions are played again
silently, and the last observation must come out the same.

Workers are fresh interpreters on a socket pair, not forks (no inherited locks, threads or CUDA state) and not children of a helper process.
A class of the script or notebook itself cannot be imported there, so it is refused.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from turnwise.envs import guard
from turnwise.envs.base import Transition
from turnwise.envs.worker import BUSY, Answer, Failure, Request, Reset, Restore, Setup, Snapshot, failure
from turnwise.util.errors import TurnwiseError

START_SECONDS = 120.0  # a fresh interpreter that imports an environment on a busy machine; the time limit proper starts after it
CLOSE_SECONDS = 3.0
DIVERGED = "its worker was lost, and playing its actions again led to another observation: reset(task, seed) and step are not deterministic"
BOOT = (
    "import sys; from multiprocessing.connection import Connection; c = Connection(int(sys.argv[1])); "
    "sys.path[:] = c.recv(); from turnwise.envs.worker import serve; serve(c)"
)


class Worker:
    """One process, the requests it has not answered yet, and the moment its present one began."""

    def __init__(self, setup: bytes, limit: float):
        self.limit = limit
        self._socket, theirs = socket.socketpair()
        self._limit_blocking(max(START_SECONDS, limit))
        with theirs:
            command = [sys.executable, "-c", BOOT, str(theirs.fileno())]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True)
        self.connection = Connection(os.dup(self._socket.fileno()))
        self.pending: deque[Request] = deque()
        self.starting = True
        self.busy = 0.0  # seconds that it has played
        self.since = time.monotonic()
        self._write(pickle.dumps(sys.path))
        self._write(setup)

    def _limit_blocking(self, seconds: float) -> None:
        """A process that was stopped, or holds its interpreter for ever, must not block the pool's reads and writes."""
        if math.isfinite(seconds):
            interval = struct.pack("@ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)

    def _write(self, packed: bytes) -> None:
        try:
            self.connection.send_bytes(packed)
        except OSError:  # dead or stuck: found out when the answer is awaited, at once
            self.since = -math.inf

    def send(self, request: Request) -> None:
        if not self.pending and not self.starting:
            self.since = time.monotonic()
        self.pending.append(request)
        self._write(pickle.dumps(request))

    def started(self) -> None:
        self.starting = False
        self._limit_blocking(self.limit)

    def finish(self) -> None:
        """Ask it to close its environments and end."""
        self._write(pickle.dumps(None))

    @property
    def deadline(self) -> float:
        if self.starting:
            return self.since + max(START_SECONDS, self.limit)
        return self.since + self.limit if self.pending else math.inf

    def kill(self) -> None:
        """End the process and all it has started, at once."""
        if self.process.poll() is None:
            guard.end_tree(self.process.pid)
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.connection.close()
        self._socket.close()

    def cause_of_death(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        code = self.process.returncode
        if code is None:
            return "the worker process closed its connection"
        if code < 0:
            return f"the worker process was killed by {signal.Signals(-code).name}"
        return f"the worker process ended with exit code {code}"


def kill_all(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()
    workers.clear()


@dataclass
class Episode:
    """What a slot has played so far: enough to play it again elsewhere."""

    start: Reset | Restore
    text: str = ""  # the last observation
    actions: list[str] = field(default_factory=list)
    moved: bool = False  # its worker was lost: play it again before the next step
    replayed: str | None = None  # the last observation while playing it again
    lost: Failure | None = None  # playing it again failed


class WorkerSlots:
    """The slots of a pool in `count` worker processes: `submit` a request, `gather` answers as they come."""

    def __init__(self, factory: Callable[[], Any], count: int, limit: float, memory_mb: int | None = None):
        self._setup = _setup(factory, memory_mb)
        self._limit = limit
        self._episodes: dict[int, Episode] = {}
        self._workers = [Worker(self._setup, limit) for _ in range(count)]
        self._answers: list[tuple[int, Answer, bool]] = []
        self._busy_before = 0.0  # seconds that workers have played which were replaced
        self._finalizer = weakref.finalize(self, kill_all, self._workers)

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    @property
    def busy(self) -> float:
        """Seconds that a worker has played so far, on average."""
        return (self._busy_before + sum(worker.busy for worker in self._workers)) / max(len(self._workers), 1)

    def submit(self, request: Request) -> None:
        index = request.slot % len(self._workers)
        worker = self._workers[index]
        if worker.process.poll() is not None and not worker.pending:
            worker = self._replace(index)  # it died between requests: no attempt is to blame
        if isinstance(request.ask, Reset | Restore):
            self._episodes[request.slot] = Episode(request.ask)
        elif (episode := self._episodes[request.slot]).moved:
            episode.moved = False
            for ask in (episode.start, *episode.actions):
                worker.send(Request(request.slot, ask, silent=True))
        worker.send(request)

    def gather(self, until: float) -> list[tuple[int, Answer, bool]]:
        """Answers as (slot, answer, whether the time limit was exceeded): at least one, or none when the clock passes `until`."""
        while True:
            waiting = {worker.connection: index for index, worker in enumerate(self._workers) if worker.pending}
            if self._answers or not waiting:
                break
            now = time.monotonic()
            soonest = min(until, *(self._workers[index].deadline for index in waiting.values()))
            patience = None if soonest == math.inf else max(0.0, soonest - now)
            for connection in wait(list(waiting), patience):
                self._receive(waiting[connection])  # type: ignore[index]
            now = time.monotonic()
            for index, worker in enumerate(self._workers):
                if worker.deadline <= now and not worker.connection.poll():
                    self._lose(index, Failure("", f"no answer within {self._limit:g} seconds"), timed_out=True)
            if time.monotonic() >= until:
                break
        answers, self._answers = self._answers, []
        return answers

    def _receive(self, index: int) -> None:
        worker = self._workers[index]
        try:
            while worker.connection.poll():
                packed = worker.connection.recv_bytes()
                worker.since = time.monotonic()
                if worker.starting:
                    worker.started()
                else:
                    (worker.busy,) = BUSY.unpack_from(packed, len(packed) - BUSY.size)
                    self._answered(worker.pending.popleft(), _unpack(packed))
        except BlockingIOError:
            self._lose(index, Failure("", "the worker stopped in the middle of an answer"), timed_out=True)
        except (EOFError, OSError):
            self._lose(index, Failure(worker.cause_of_death()), timed_out=False)

    def _answered(self, request: Request, answer: Answer) -> None:
        episode = self._episodes[request.slot]
        if request.silent:
            if isinstance(answer, Failure):
                episode.lost = episode.lost or answer
            elif isinstance(answer, Transition):
                episode.replayed = answer.observation.text
            return
        if isinstance(request.ask, str | Snapshot) and episode.replayed not in (None, episode.text):
            episode.lost = episode.lost or Failure(DIVERGED)
        episode.replayed = None
        answer = episode.lost or answer
        if isinstance(answer, Transition):
            episode.text = answer.observation.text
            if isinstance(request.ask, str):
                episode.actions.append(request.ask)
        self._answers.append((request.slot, answer, False))

    def _lose(self, index: int, answer: Failure, timed_out: bool) -> None:
        """Replace a worker. What it was playing gets the fault; the slots it shared with others play on in the new one."""
        orphans = [request for request in self._workers[index].pending if not request.silent]
        guilty = self._workers[index].pending[0].slot if self._workers[index].pending else None
        self._episodes = {slot: episode for slot, episode in self._episodes.items() if slot != guilty}
        self._replace(index)
        for request in orphans:
            if request.slot == guilty:
                self._answers.append((request.slot, answer, timed_out))
            else:
                self.submit(request)

    def _replace(self, index: int) -> Worker:
        self._workers[index].kill()
        self._busy_before += self._workers[index].busy
        self._workers[index] = Worker(self._setup, self._limit)
        for slot, episode in self._episodes.items():
            episode.moved = episode.moved or slot % len(self._workers) == index
        return self._workers[index]

    def close(self) -> None:
        """Let the workers close their environments; end those that do not do so in a few seconds."""
        for worker in self._workers:
            worker.finish()
        patience = time.monotonic() + CLOSE_SECONDS
        for worker in self._workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, patience - time.monotonic()))
        self._finalizer()


def _setup(factory: Callable[[], Any], memory_mb: int | None) -> bytes:
    try:
        packed = pickle.dumps(factory)
        problem = "it is a class of the script itself" if b"__main__" in packed else ""
    except Exception as error:
        packed, problem = b"", str(error)
    if problem:
        raise TurnwiseError(
            f"worker processes cannot get this environment: {problem}. Give its name ('alfworld', 'path/to/my_env.py:MyEnv')"
            " or a class or function at the top level of another module, or play in this process (env.workers=0)"
        )
    return pickle.dumps(Setup(os.getpid(), packed, memory_mb))


def _unpack(packed: bytes) -> Answer:
    try:
        answer = pickle.loads(packed)
        if isinstance(answer, Answer):
            return answer
        raise TypeError(f"it is {type(answer).__name__}")
    except Exception as error:
        return failure(TypeError(f"the answer of the worker cannot be read here: {error}"))
