"""Ctrl-C: the first one finishes the turn, saves and exits; a second one exits immediately.

An environment in this process may hang, and then no turn is ever finished. A thread watches from the first signal on: a call of an
environment that has not returned after `GRACE` seconds is abandoned by an exception. Code that Python cannot interrupt goes on even then:
the thread saves, and ends the process. (It is woken by the signal itself, whatever the main thread is in. Only a C function that never
releases Python's lock keeps it waiting.)
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

GRACE = 5.0  # seconds that a call of an environment may still take after the first signal
POLL = 0.1
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Abandoned(KeyboardInterrupt):
    """Raised inside a call of an environment that has not returned although the run was asked to stop."""


class Interrupt:
    """Inside the `with` block, SIGINT and SIGTERM set a flag that the loop checks. A second signal acts as usual: it stops the process.
    `call` gives the number of the environment's call that the main thread is in, 0 if it is in none. `last` is what to do before the
    process ends in a call that cannot be interrupted."""

    def __init__(self, say: Callable[[str], None] = lambda text: None, call: Callable[[], int] = lambda: 0):
        self.asked = False
        self.last: Callable[[], None] = lambda: None
        self._say, self._call = say, call
        self._before: dict[int, Any] = {}
        self._abandoned = 0  # the call that is not waited for any more
        self._over = threading.Event()

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
            reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(reader, threading.get_ident()), name="signals", daemon=True).start()
        return self

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._abandoned:
            call, self._abandoned = self._abandoned, 0
            if call == self._call():
                self.asked = True
                raise Abandoned
        elif not self.asked:
            self.asked = True
            self._say("Stopping: finishing the turn and saving. Press Ctrl-C again to stop immediately.")
        else:
            self._restore()
            signal.raise_signal(number)

    def _watch(self, reader: socket.socket, main: int) -> None:
        """From the first signal on: end a call of an environment that does not return."""
        with reader:
            while (received := reader.recv(1)) and received[0] not in SIGNALS:
                pass
        known, since, tried = 0, time.monotonic(), False
        while received and not self._over.wait(POLL):
            if (call := self._call()) != known or not call:
                known, since, tried = call, time.monotonic(), False
            elif time.monotonic() - since >= GRACE:
                if tried:
                    self._end()
                self._abandoned, since, tried = call, time.monotonic(), True
                if hasattr(signal, "pthread_kill"):
                    signal.pthread_kill(main, signal.SIGTERM)
                else:  # signals go to the process as a whole (Windows): it gets there with the next line of Python
                    interrupt_main(signal.SIGTERM)

    def _end(self) -> None:
        self._say("Stopping: a call of the environment does not return and cannot be interrupted. Saving, and ending the process.")
        with suppress(BaseException):
            self.last()
        os._exit(128 + signal.SIGTERM)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
            self._writer.close()
        self._before = {}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._restore()


def _in_child() -> None:
    """A copy of this process would tell the thread here about its own signals."""
    with suppress(ValueError):  # not the main thread: it has no such file
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
