"""Ctrl-C: the first one finishes the turn, saves and exits; a second one exits immediately."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """Inside the `with` block, SIGINT and SIGTERM set a flag that the loop checks. A second signal acts as usual: it stops the process."""

    def __init__(self, say: Callable[[str], None] = lambda text: None):
        self.asked = False
        self._say = say
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._first)
        return self

    def _first(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()
        self._say("Stopping: finishing the turn and saving. Press Ctrl-C again to stop immediately.")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()
