"""Which call of an environment this process is in. If the process ends in one without a word (`os._exit`, a crash of a C library, a kill),
the next start of the run reads it from a small file in the run's folder.

The file is mapped into memory: what is written there costs no system call, and stays if the process ends. Environments in worker processes
need none of this, because the pool sees their end.
"""

from __future__ import annotations

import json
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from turnwise.util.files import inside

FILE = ".playing"
SIZE = 4096
LONGEST = 200  # characters of a name; each takes 12 bytes at most
IDLE, INSIDE = b"-", b"+"  # the first byte


class Playing:
    """The calls in the main thread of this process. `call` is the number of the current one, 0 outside."""

    def __init__(self) -> None:
        self.call = 0
        self._count = 0
        self._file: mmap.mmap | None = None
        self._environment = ""

    @contextmanager
    def inside(self, method: str, task: str = "", turn: int = 0) -> Iterator[None]:
        """A call of an environment."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._count += 1
        self.call = self._count
        if self._file is not None:
            self._file[1:] = json.dumps([method, self._environment, task[:LONGEST], turn]).encode().ljust(SIZE - 1)
            self._file[:1] = INSIDE
        try:
            yield
        finally:
            self.call = 0
            if self._file is not None:
                self._file[:1] = IDLE

    @contextmanager
    def kept(self, folder: Path, environment: str) -> Iterator[None]:
        """Inside, the file in a run's folder says which call this process is in. It is removed at the end, however that comes. On a disk
        that has no room for it, there is none."""
        path = inside(folder, folder / FILE)
        with suppress(OSError):
            path.write_bytes(IDLE.ljust(SIZE))
            with path.open("r+b") as file:
                self._file, self._environment = mmap.mmap(file.fileno(), SIZE), environment[:LONGEST]
        try:
            yield
        finally:
            self._file = None
            with suppress(OSError):
                path.unlink(missing_ok=True)


playing = Playing()  # of this process


def last_call(folder: Path) -> str:
    """What to say about the call that the last start of a run ended in; empty if it did not end in one."""
    try:
        with inside(folder, folder / FILE).open("rb") as file:
            content = file.read(SIZE)
        method, environment, task, turn = json.loads(content[1:]) if content[:1] == INSIDE else [None] * 4
    except (OSError, ValueError):
        return ""
    if not isinstance(method, str):
        return ""
    where = f"at task {_shown(task)}, turn {_shown(turn)}"
    return (
        f"the last start of this run ended inside {method}() of environment {_shown(environment)}, {where}. "
        "If nobody killed the process, the environment did: os._exit, a crash of a library, too much memory. In worker processes "
        "(env.workers=1 or more) this costs one attempt and not the run"
    )


def _shown(value: Any) -> str:
    return repr(value)[: LONGEST + 2]
