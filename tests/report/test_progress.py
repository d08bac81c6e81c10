"""What a person sees while a run goes on: plain lines, and in a terminal the phase."""

from __future__ import annotations

import threading
from io import StringIO

import pytest
from rich.console import Console

from turnwise.report import progress
from turnwise.report.progress import LineReporter
from turnwise.runs.reporter import Reporter, heartbeat

METRICS = {
    "collect/success": 0.5,
    "collect/reward": 1.25,
    "collect/turns": 96.0,
    "eval/success": 0.75,
    "time/iteration": 10.0,
    "time/tokens_per_second": 321.0,
}


def play(shown: Reporter, clock: list[float]) -> None:
    """A run of three iterations of ten seconds each, after a warm start of a hundred."""
    shown.begin("mine: gigpo on household", 3, 0)
    shown.phase("warm start", 8)
    clock[0] += 100
    for number in (1, 2):
        shown.phase("collecting", 64)
        shown.advance(3)
        clock[0] += 10
        shown.iteration(number, METRICS)
    shown.note("warning: [bold]odd")
    shown.phase("evaluation")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_elsewhere_than_in_a_terminal_an_iteration_is_one_line(clock: list[float]) -> None:
    console = Console(file=StringIO(), width=60)
    shown = LineReporter(console)
    play(shown, clock)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "iteration 2/3  success 50 %  held-out 75 %  reward 1.25  turns 96  321 tokens/s  10 s left" in lines
    assert "warning: [bold]odd" in lines


def test_a_terminal_shows_the_phase_below_the_lines(clock: list[float]) -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True)
    shown = LineReporter(console)
    play(shown, clock)
    shown.advance(5)
    shown.beat()
    shown.end()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("mine: gigpo on household", "iteration 2/3  success 50 %", "10 s left", "evaluation …  5 attempts  0 s"):
        assert words in text


def test_the_line_of_an_iteration_fits_a_narrow_terminal(clock: list[float]) -> None:
    console = Console(file=StringIO(), width=80, force_terminal=True)
    shown = LineReporter(console)
    play(shown, clock)
    shown.end()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "iteration 2/3  success 50 %  held-out 75 %  reward 1.25  turns 96  10 s left" in text


def test_a_phase_says_how_much_is_done_and_left_in_its_own_unit(clock: list[float]) -> None:
    console = Console(file=StringIO(), width=80)
    shown = LineReporter(console)
    shown.phase("warm start: learning", 450, "steps")
    for _ in range(90):
        shown.advance(1, "steps")
    shown.expect(16)  # a measurement in between plays attempts, which are not steps
    shown.advance()
    clock[0] += 20
    shown.beat()
    assert "  warm start: learning …  90 of 450 steps  20 s, 1:20 min left\n" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("terminal", [False, True])
def test_what_takes_long_says_so_every_ten_seconds(clock: list[float], terminal: bool) -> None:
    console = Console(file=StringIO(), width=100, force_terminal=terminal)
    shown = LineReporter(console)

    def seconds(count: int) -> list[str]:
        """The lines of so many seconds, in each of which the heartbeat comes once."""
        before = len(console.file.getvalue())  # type: ignore[attr-defined]
        for _ in range(count):
            clock[0] += 1
            shown.beat()
        return console.file.getvalue()[before:].splitlines()  # type: ignore[attr-defined]

    assert seconds(60) == []  # nothing has begun
    shown.phase("warm start", 1200)
    shown.advance(300)
    assert len(seconds(20)) == 2
    shown.note("told")
    assert seconds(8) == []
    shown.begin("mine", 3, 0)
    shown.phase("collecting")
    shown.expect(64)
    assert seconds(9) == ([] if terminal else ["  collecting …  0 of 64 attempts  9 s"])  # the line that is updated shows it
    shown.end()


def test_the_heartbeat_comes_while_the_process_is_busy_and_ends_with_it() -> None:
    came = threading.Event()

    class Hears(Reporter):
        def beat(self) -> None:
            came.set()

    with heartbeat(Hears()):
        assert came.wait(60)
    assert "heartbeat" not in [thread.name for thread in threading.enumerate()]
