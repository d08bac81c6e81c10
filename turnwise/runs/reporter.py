"""Reporters are told what happens in a run. A reporter only shows: report/progress.py has those for a terminal and a log."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

ATTEMPTS = "attempts"  # what a phase counts, unless it says otherwise


class Reporter:
    """The training loop tells it what happens. This one shows nothing: it is for tests and scripts, and the base of those that show
    something."""

    def begin(self, title: str, iterations: int, done: int) -> None: ...

    def phase(self, name: str, total: int | None = None, unit: str = ATTEMPTS) -> None: ...  # and what it counts

    def expect(self, amount: int) -> None: ...  # the phase will make this many more attempts than announced

    def advance(self, amount: int = 1, unit: str = ATTEMPTS) -> None: ...  # so many are over; other units than the phase's do not count

    def iteration(self, number: int, metrics: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def beat(self) -> None: ...  # called every second while something runs that may take long: see `heartbeat`

    def end(self) -> None: ...


@contextmanager
def heartbeat(shown: Reporter) -> Iterator[None]:
    """Inside, the reporter is told every second that time passes, whatever this process does meanwhile."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(1.0):
            shown.beat()

    thread = threading.Thread(target=tell, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
