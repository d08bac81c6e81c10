"""The display of a run in progress: a live panel in a terminal, plain lines anywhere else.

The loop tells a `Reporter` (runs/reporter.py) what happens; those of this file show it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turnwise.runs.reporter import Reporter
from turnwise.util.console import Console
from turnwise.util.printable import printable

OF_EVERY_ITERATION = ("collecting", "learning")  # the line of the iteration tells of these
QUIET = 9.0  # seconds without a line, after which one tells what is being done; asked every second
BARS = " ▁▂▃▄▅▆▇█"


def sparkline(values: list[float], width: int = 40) -> str:
    """Shares in [0, 1] as small bars, the last `width` of them."""
    return "".join(BARS[round(min(max(value, 0.0), 1.0) * (len(BARS) - 1))] for value in values[-width:])


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3:05 min, 2:10 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} min"
    return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02d} h"


class LineReporter(Reporter):
    """One line per iteration, and one every ten seconds in between."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self._title, self._number = "", 0
        self._iterations, self._done_before = 0, 0
        self._started: float | None = None  # when the first iteration began: earlier time does not predict later iterations
        self._phase, self._count = "", 0
        self._total: int | None = None
        self._phase_began = self._told_at = time.monotonic()

    def begin(self, title: str, iterations: int, done: int) -> None:
        self._title, self._number = title, done
        self._iterations, self._done_before, self._started = iterations, done, None
        self._open()

    def _open(self) -> None:
        self._say(self._title)

    def phase(self, name: str, total: int | None = None) -> None:
        if self._started is None and name == "collecting":
            self._started = time.monotonic()
        self._phase, self._total, self._count, self._phase_began = name, total, 0, time.monotonic()
        if name not in OF_EVERY_ITERATION and not self._shows_phases:
            self._say(f"  {name} …")

    def expect(self, amount: int) -> None:
        self._total = (self._total or 0) + amount

    def advance(self, amount: int = 1) -> None:
        self._count += amount

    def beat(self) -> None:
        now = time.monotonic()
        if self._phase and not self._shows_phases and now - self._told_at >= QUIET:
            self._say(f"  {self._phase} …{self._progress()}  {duration(now - self._phase_began)}")

    @property
    def _shows_phases(self) -> bool:
        """Whether a display that is updated shows the phase: lines about it are not needed then."""
        return False

    def _progress(self) -> str:
        """One unit everywhere: finished attempts, of those that the phase has announced."""
        if not self._total:
            return f"  {self._count} attempts" if self._count else ""
        return f"  {self._count} of {max(self._total, self._count)} attempts"

    def iteration(self, number: int, metrics: Mapping[str, Any]) -> None:
        left = self._left(number)
        words = [f"iteration {number}/{self._iterations}", f"success {_percent(metrics.get('collect/success'))}"]
        if (measured := metrics.get("eval/success")) is not None:
            words.append(f"held-out {_percent(measured)}")
        words += [f"reward {metrics.get('collect/reward', 0):.2f}", f"turns {metrics.get('collect/turns', 0):.0f}"]
        words += [f"{metrics.get('time/tokens_per_second', 0):.0f} tokens/s", f"{left} left"]
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
        self.console.print(Text(printable(text)), soft_wrap=True)

    def end(self) -> None:
        self._phase = ""


class Panelled(LineReporter):
    """A live panel: iteration, phase, success with a small curve, tokens/s, time left. Notes stay above it."""

    def __init__(self, console: Console | None = None):
        super().__init__(console)
        self._metrics: dict[str, Any] = {}
        self._success: list[float] = []
        self._held_out: list[float] = []
        self._measured = 0  # the iteration of the last of them
        self._live: Live | None = None

    def _open(self) -> None:
        if not self._iterations:  # an evaluation or a warm start alone: its panel disappears, this line stays
            self._say(self._title)
        self._live = Live(console=self.console, refresh_per_second=4, get_renderable=self._render, transient=not self._iterations)
        self._live.start()

    @property
    def _shows_phases(self) -> bool:
        return self._live is not None

    def iteration(self, number: int, metrics: Mapping[str, Any]) -> None:
        self._number, self._metrics = number, dict(metrics)
        self._success.append(float(metrics.get("collect/success", 0.0)))
        if (measured := metrics.get("eval/success")) is not None:
            self._held_out.append(float(measured))
            self._measured = number

    def _render(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        table.add_row("now", f"{self._phase}{self._progress()}")
        if self._success:
            table.add_row("success", f"{_percent(self._success[-1])}  {sparkline(self._success)}")
        if self._held_out:
            table.add_row("held-out", f"{_percent(self._held_out[-1])}  {sparkline(self._held_out)}  after iteration {self._measured}")
        if self._metrics:
            speed = f"{self._metrics.get('time/tokens_per_second', 0):.0f} tokens/s"
            table.add_row(
                "speed", f"{speed}, {duration(self._metrics.get('time/iteration', 0))} per iteration, {self._left(self._number)} left"
            )
        bar = Table.grid(expand=True)  # a bar alone does not end its line: what follows would be cut off
        done, total = (self._number, self._iterations) if self._iterations else (self._count, self._total or 1)
        bar.add_row(ProgressBar(total=total, completed=min(done, total)))
        place = [Text(f"iteration {self._number} of {self._iterations}")] if self._iterations else []
        return Panel(Group(*place, bar, table), title=Text(self._title), title_align="left")

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()  # shows the last phase
        super().end()


def reporter(console: Console | None = None) -> Reporter:
    """The live panel in a terminal, plain lines elsewhere."""
    console = console or Console()
    return Panelled(console) if console.is_terminal else LineReporter(console)


def default_reporter() -> Reporter:
    """What Python calls show: as the command line does, but on stderr."""
    return reporter(Console(stderr=True))


def _percent(share: Any) -> str:
    return "–" if share is None else f"{100 * float(share):.0f} %"
