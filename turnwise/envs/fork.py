"""A worker process that is a copy of this one, for environments that only this process has, such as a class from a notebook cell.

A fresh interpreter is the better worker (no inherited locks, threads or CUDA state), so this is only for classes that a fresh one cannot
import. The copy only plays environments: signals have their default behaviour, torch uses one thread (a thread pool does not survive a
fork), and it exits without running this process's exit handlers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.envs.worker import MEGABYTE, play_requests
from turnwise.util.terminal import say

CAN_FORK = sys.platform == "linux"  # elsewhere system libraries do not survive it
POLL_SECONDS = 0.02


class Inherited(NamedTuple):
    """The factory for a copy of this process, which already has it."""

    factory: Callable[[], Any]
    memory_mb: int | None


class Forked:
    """A copy of this process, with the part of `subprocess.Popen` that the pool uses."""

    def __init__(self, channel: int, setup: Inherited):
        self.returncode: int | None = None
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()  # otherwise the copy would write it a second time
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns where there are threads: see above
            self.pid = os.fork()
        if self.pid == 0:
            _live(channel, setup, parent)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)  # the copy does so too; whoever comes first

    def poll(self) -> int | None:
        """The exit code, negative for a signal; none while it is running."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # other code has already waited for it
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired("a worker process", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return code


def _live(channel: int, setup: Inherited, parent: int) -> None:
    """The main function of the copy. It never returns."""
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)
        memory = None if setup.memory_mb is None else setup.memory_mb * MEGABYTE + _allocated()
        play_requests(Connection(channel), parent, lambda: setup.factory, memory, setup.memory_mb)
        code = 0
    except BaseException:
        say(traceback.format_exc(), err=True)
    finally:
        os._exit(code)


def _allocated() -> int:
    """Bytes that this process has already allocated; the limit is added to them."""
    with contextlib.suppress(OSError, ValueError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:")), 0)
    return 0
