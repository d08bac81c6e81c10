"""An environment in the main process that ends the process, or never returns: the run says so, and a signal ends it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from launching import Program
from train_cases import TINY, Heard

import turnwise as tw
from turnwise.envs.playing import FILE, last_call
from turnwise.learn import checkpoint

ENV = """
import ctypes, os, time
from pathlib import Path
from turnwise import Observation, Transition

HERE = Path(__file__).parent


class Odd:
    '''Two turns. Once the file `after` is there, the second turn of the next attempt does what its text says.'''

    max_turns = 2

    def reset(self, task, seed=0):
        self.turn = 0
        return Observation("pick left or right", actions=("left", "right"))

    def step(self, action):
        self.turn += 1
        if self.turn == 2 and (HERE / "after").exists():
            (HERE / "inside").touch()
            self.happen((HERE / "after").read_text())
        return Transition(Observation("again", actions=("left", "right")), 1.0, self.turn == 2, self.turn == 2)

    def happen(self, what):
        if what == "exit":
            os._exit(7)
        if what == "sleep":
            while True:
                time.sleep(0.1)
        if what == "stubborn":
            while True:
                try:
                    time.sleep(3600)
                except BaseException:
                    pass
        if what == "c":  # a C function that no signal ends: the handlers of Python never run
            libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
            libc.pthread_mutex_lock(mutex)
            libc.pthread_mutex_lock(mutex)
"""
START = """
import signal, sys
from pathlib import Path
import turnwise as tw
from turnwise.runs.reporter import Reporter
from turnwise.util import interrupt

interrupt.GRACE = 0.5

class Tells(Reporter):
    def note(self, text):
        print(text, flush=True)

    def iteration(self, number, metrics):
        print("iteration", number, flush=True)
        if number == 2:
            Path("after").write_text(sys.argv[1])

settings = {SETTINGS}
result = tw.train(reporter=Tells(), **settings)
print("interrupted", result.interrupted, flush=True)
"""


def launch(folder: Path, what: str) -> Program:
    """A run in a process of its own whose environment does something odd in its third iteration. It writes to the file `printed`."""
    (folder / "odd.py").write_text(ENV)
    settings = {**TINY, "env.name": "odd.py:Odd", "env.tasks": 8, "eval.n": 1, "run.checkpoint_every": 5}
    settings |= {"iterations": 5, "out": ".", "name": "try"}
    printed = folder / "printed"
    printed.touch()
    return Program(["-c", START.replace("{SETTINGS}", repr(settings)), what], (str(printed), os.devnull), folder)


def resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    (folder / "after").unlink()
    monkeypatch.chdir(folder)
    heard = Heard()
    return tw.train(resume="try", reporter=heard), heard.notes


def test_a_run_whose_environment_ended_the_process_says_so_when_it_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = launch(tmp_path, "exit")
    assert run.wait() == 7 and (tmp_path / "try" / FILE).is_file()
    result, notes = resumed(tmp_path, monkeypatch)
    [note] = [note for note in notes if "the last start" in note]
    assert "ended inside step() of environment 'odd.py:Odd', at task '" in note and ", turn 1." in note and "env.workers" in note
    assert result.summary["finished"] and not (tmp_path / "try" / FILE).exists() and last_call(tmp_path / "try") == ""


@pytest.mark.parametrize("what", ["sleep", "stubborn", "c"])
def test_the_first_signal_ends_a_run_whose_environment_never_returns_and_keeps_what_was_learned(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = launch(tmp_path, what)
    while not (tmp_path / "inside").exists():
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    run.wait()
    printed = (tmp_path / "printed").read_text()
    found = checkpoint.latest_good(tmp_path / "try" / "checkpoints")
    assert found is not None and found.step == 2, "saved although run.checkpoint_every is 5"
    if what in ("stubborn", "c"):
        assert run.returncode == 128 + signal.SIGTERM and "cannot be interrupted" in printed
    else:
        assert run.returncode == 0 and "it was abandoned" in printed and "interrupted True" in printed
    result, notes = resumed(tmp_path, monkeypatch)
    assert result.summary["finished"] and result.summary["iterations"] == 5
    assert any("the last start" in note for note in notes) == (what in ("stubborn", "c"))


def test_a_marker_that_is_damaged_or_idle_says_nothing(tmp_path: Path) -> None:
    for content in (b"", b"-", b"+", b"+[1, 2]", b"+{}", b"+" + b"\xff" * 5000, b'+["step", "e", "t", 1, 2]'):
        (tmp_path / FILE).write_bytes(content)
        assert last_call(tmp_path) == ""
    (tmp_path / FILE).write_bytes(b'+["step", "e\\u001b[2J", "t\\n", 3]')
    assert "'e\\x1b[2J', at task 't\\n', turn 3" in last_call(tmp_path)
