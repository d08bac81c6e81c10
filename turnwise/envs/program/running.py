"""Running attempts of a program: a function in a thread, a command in a process, a request to a server.

Each of them reports once, when it has ended, and can be ended before that. A thread cannot be killed: a function that hangs is left behind,
its calls are refused, and what it returns later is dropped. A command is run by `envs/guard.py`, which kills all that it has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from turnwise.envs.blame import one_line, own_lines
from turnwise.envs.program.client import Client
from turnwise.util.transport import Failure, Transport

TAIL = 200  # lines of a program's output that are kept
LONGEST_LINE = 100_000
GUARD = str(Path(__file__).parent.with_name("guard.py"))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: with a result, or with an error (`problem`, and its lines in the user's files). `silent` says why there is no
    result, if it did not fail."""

    result: Any = None
    problem: str = ""
    own_lines: str = ""
    silent: str = "the program returned nothing"


class Running(Protocol):
    """A running attempt. `run` blocks until the program has ended; `kill` may be called from another thread."""

    def run(self) -> Ended: ...

    def kill(self) -> None: ...


@dataclass
class FunctionAttempt:
    """`solve(task, client)`, sync or async."""

    function: Callable[..., Any]
    task: Mapping[str, Any]
    client: Client

    def run(self) -> Ended:
        try:
            found = self.function(dict(self.task), self.client)
            return Ended(asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found)
        except BaseException as error:  # also sys.exit: a program must not end the run
            return Ended(problem=one_line(error), own_lines=own_lines(error))

    def kill(self) -> None:
        """Nothing can end a thread; its next call is refused."""


async def _awaited(found: Any) -> Any:
    return await found


class CommandAttempt:
    """A process of its own. `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `TURNWISE_TASK` and `TURNWISE_SEED` are in its environment."""

    def __init__(self, words: Sequence[str], task: Mapping[str, Any], client: Client, result: str, cwd: str | None):
        self._words = [filled(word, task) for word in words]
        self._result, self._cwd = result, cwd
        self._environment = {
            **os.environ,
            "OPENAI_BASE_URL": client.base_url,
            "OPENAI_API_KEY": client.api_key,
            "TURNWISE_TASK": json.dumps(task),
            "TURNWISE_SEED": str(client.seed),
        }
        self._process: subprocess.Popen[str] | None = None
        self._killed = False

    def run(self) -> Ended:
        pipe = subprocess.PIPE
        words = [sys.executable if self._words[0] == "python" else self._words[0], *self._words[1:]]
        reads, writes = os.pipe()
        guarded = [sys.executable, "-I", "-S", GUARD, str(os.getpid()), str(writes), *words]
        try:
            process = subprocess.Popen(
                guarded, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace",
                env=self._environment, cwd=self._cwd, start_new_session=True, pass_fds=(writes,),
            )  # fmt: skip
        except (OSError, ValueError) as error:
            os.close(reads)
            return Ended(problem=f"the program {self._words[0]} cannot be started: {error}")
        finally:
            os.close(writes)
        self._process = process
        if self._killed:
            self.kill()
        printed, complained = _Tail(process.stdout), _Tail(process.stderr)
        with os.fdopen(reads, errors="replace") as status:
            lines = status.read().splitlines()  # ends with the guard
        process.wait()
        for tail in (printed, complained):
            tail.join(1.0)
        if len(lines) > 1:
            return Ended(problem=f"the program {self._words[0]} {lines[0]}"[:500])
        return self._ended(int(lines[0]) if lines else process.returncode, printed.lines, complained.lines)

    def _ended(self, code: int, printed: Sequence[str], complained: Sequence[str]) -> Ended:
        last = printed[-1] if printed else ""
        if self._result == "exit code" and code >= 0:
            return Ended(code == 0)
        if code != 0:
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            return Ended(problem=f"the program ended with {why}: {complained[-1] if complained else last}"[:500])
        found = read_result(last)
        why = f"the last line that the program printed is not a number or a JSON object: {last[:200]!r}"
        if found is None and self._result == "printed":
            return Ended(problem=why)
        return Ended(found, silent=why if last else "the program printed nothing")

    def kill(self) -> None:
        """End the process with all that it has started."""
        self._killed = True
        if self._process is not None:
            self._process.terminate()


class _Tail(threading.Thread):
    """Reads a pipe to its end and keeps the last lines."""

    def __init__(self, stream: IO[str] | None):
        super().__init__(daemon=True)
        self._stream, self._lines = stream, deque[str](maxlen=TAIL)
        self.start()

    def run(self) -> None:
        if self._stream is None:
            return
        with contextlib.suppress(ValueError, OSError), self._stream:
            while line := self._stream.readline(LONGEST_LINE):
                if line.strip():
                    self._lines.append(line.strip())

    @property
    def lines(self) -> list[str]:
        return list(self._lines)


@dataclass
class UrlAttempt:
    """A request to a server that solves tasks: it is sent the task with the address and the key to use, and answers with the outcome."""

    url: str
    task: Mapping[str, Any]
    client: Client
    seconds: float

    def run(self) -> Ended:
        own = self.client
        body = {"task": self.task, "base_url": own.base_url, "api_key": own.api_key, "model": own.model, "seed": own.seed}
        try:
            address, _, path = self.url.rpartition("/") if self.url.count("/") > 2 else (self.url, "", "")
            self._transport = Transport(address, "", self.seconds)
            return Ended(self._transport.post(path, body))
        except Failure as error:
            return Ended(problem=f"the server {self.url} did not solve the task: {error}")

    def kill(self) -> None:
        """Close the connection."""
        with contextlib.suppress(AttributeError):
            self._transport.close()


def filled(word: str, task: Mapping[str, Any]) -> str:
    """A word of a command with the task in it: {task} as JSON, and {id} or another field of the row."""
    for name, value in {"task": json.dumps(task), **task}.items():
        word = word.replace(f"{{{name}}}", value if isinstance(value, str) else json.dumps(value))
    return word


def read_result(line: str) -> Any:
    """A number or an object with a reward on the last line; None for anything else."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(line)
        if isinstance(found, bool | int | float) or (isinstance(found, Mapping) and "reward" in found):
            return found
    with contextlib.suppress(ValueError):
        return float(line)
    return None


__all__ = ["CommandAttempt", "Ended", "FunctionAttempt", "Running", "UrlAttempt", "filled", "read_result"]
