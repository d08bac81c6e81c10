"""The display of a run in progress: a line for each iteration, and in a terminal below them what is being done at the moment.

The loop tells a `Reporter` (runs/reporter.py) what happens; the one of this file shows it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.status import Status
from rich.text import Text

from turnwise.runs.reporter import ATTEMPTS, Reporter
from turnwise.util.console import Console
from turnwise.util.printable import printable

OF_EVERY_ITERATION = ("collecting", "learning")  # the line of the iteration tells of these
QUIET = 9.0  # seconds without a line, after which one tells what is being done; asked every second


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3:05 min, 2:10 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} min"
    return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02d} h"


class LineReporter(Reporter):
    """One line per iteration. In between, a terminal shows the phase in a line that is updated, and a log gets one every ten seconds."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self._iterations, self._done_before = 0, 0
        self._started: float | None = None  # when the first iteration began: earlier time does not predict later iterations
        self._phase, self._count, self._unit = "", 0, ATTEMPTS
        self._total: int | None = None
        self._phase_began = self._told_at = time.monotonic()
        self._status: Status | None = None  # the line that is updated

    def begin(self, title: str, iterations: int, done: int) -> None:
        self._iterations, self._done_before, self._started = iterations, done, None
        self._say(title)
        if self.console.is_terminal and self._status is None:
            self._status = self.console.status(Text(title))
            self._status.start()

    def phase(self, name: str, total: int | None = None, unit: str = ATTEMPTS) -> None:
        if self._started is None and name == "collecting":
            self._started = time.monotonic()
        self._phase, self._total, self._unit, self._count, self._phase_began = name, total, unit, 0, time.monotonic()
        if self._status is not None:
            self._status.update(Text(f"{name} …"))
        elif name not in OF_EVERY_ITERATION:
            self._say(f"  {name} …")

    def expect(self, amount: int) -> None:
        if self._unit == ATTEMPTS:
            self._total = (self._total or 0) + amount

    def advance(self, amount: int = 1, unit: str = ATTEMPTS) -> None:
        if self._unit == unit:
            self._count += amount

    def beat(self) -> None:
        if not self._phase:
            return
        now = time.monotonic()
        words = f"{self._phase} …{self._progress(now - self._phase_began)}"
        if self._status is not None:
            self._status.update(Text(words))
        elif now - self._told_at >= QUIET:
            self._say(f"  {words}")

    def _progress(self, passed: float) -> str:
        """How much of the phase is done, of what it has announced, and the time that has passed and is left."""
        counted = f"  {self._count} {self._unit}" if self._count else ""
        left = ""
        if self._total:
            total = max(self._total, self._count)
            counted = f"  {self._count} of {total} {self._unit}"
            left = f", {duration(passed / self._count * (total - self._count))} left" if self._count else ""
        return f"{counted}  {duration(passed)}{left}"

    def iteration(self, number: int, metrics: Mapping[str, Any]) -> None:
        left = self._left(number)
        words = [f"iteration {number}/{self._iterations}", f"success {_percent(metrics.get('collect/success'))}"]
        if (measured := metrics.get("eval/success")) is not None:
            words.append(f"held-out {_percent(measured)}")
        words += [f"reward {metrics.get('collect/reward', 0):.2f}", f"turns {metrics.get('collect/turns', 0):.0f}"]
        words += [f"{metrics.get('time/tokens_per_second', 0):.0f} tokens/s", f"{left} left"]
        while self.console.is_terminal and len(words) > 4 and len("  ".join(words)) > self.console.width:
            del words[-2]  # the least important first
        self._say("  ".join(words))

    def _left(self, number: int) -> str:
        done = number - self._done_before
        if done < 1 or self._started is None:
            return "?"
        return duration((time.monotonic() - self._started) / done * (self._iterations - number))

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        self._told_at = time.monotonic()
        self.console.print(Text(printable(text)), soft_wrap=not self.console.is_terminal)

    def end(self) -> None:
        self._phase = ""
        if self._status is not None:
            self._status.stop()
            self._status = None


def _percent(share: Any) -> str:
    return "–" if share is None else f"{100 * float(share):.0f} %"
