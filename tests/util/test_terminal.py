"""No text that somebody else wrote acts on a terminal: not as a control sequence, not as markup, not by turning the writing around."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from turnwise.report.progress import LineReporter
from turnwise.util.console import Console
from turnwise.util.printable import printable
from turnwise.util.terminal import command

HOSTILE = (
    "a\x1b[31mb\x1b]0;title\x07c\x1b]8;;http://evil.example\x1b\\d\x9b2Je\rf\x08g\u202eh\u2066i\x00j\x85k\u2028l"
    " [bold]m[/bold] [link=http://evil.example]n[/link] :smile:"
)
SHOWN = "abcdefghijkl [bold]m[/bold] [link=http://evil.example]n[/link] :smile:"
ALLOWED = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\r?\x1b\[2K|\x1b\[1A")  # rich's own: styles, the cursor of a live display


def acts(text: str) -> list[str]:
    """The characters of what reached a terminal that could act there."""
    return [c for c in ALLOWED.sub("", text) if c not in "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u2066\u2028")]


def test_plain_text_keeps_its_words_and_nothing_that_acts() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("Ärger, 漢字, 🙂\tend\n") == "Ärger, 漢字, 🙂\tend\n"


def test_a_sequence_that_never_ends_hides_nothing_that_follows() -> None:
    assert printable("task \x1b]0;x was ended: read this\nand this") == "task ]0;x was ended: read this\nand this"


def test_a_console_shows_hostile_text_as_text_wherever_it_stands() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200, color_system="truecolor", legacy_windows=False)
    table = Table(title=HOSTILE, caption=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    console.print(HOSTILE)
    console.print(Text(HOSTILE, style="bold"), soft_wrap=True)
    console.print(Panel(HOSTILE, title=Text(HOSTILE)))
    with Live(console=console, get_renderable=lambda: table):
        console.print(HOSTILE)
    shown = out.getvalue()
    assert not acts(shown)
    assert "evil.example]n[/link]" in shown and "[bold]m[/bold]" in shown and ":smile:" in shown
    assert "\x1b]" not in shown


@pytest.mark.parametrize("terminal", [False, True])
def test_the_progress_display_shows_names_and_notes_as_text(terminal: bool) -> None:
    out = io.StringIO()
    shown = LineReporter(Console(file=out, force_terminal=terminal, width=200, legacy_windows=False))
    shown.begin(f"{HOSTILE}: gigpo on {HOSTILE}", 3, 0)
    shown.phase(f"collecting {HOSTILE}")
    shown.note(f"warning: an attempt at task {HOSTILE} was ended: {HOSTILE}")
    shown.end()
    text = out.getvalue().removesuffix("\r\x1b[1A\x1b[2K")  # rich itself takes its own line away
    assert "[bold]m[/bold]" in text
    assert not acts(text)


PROGRAM = """
import logging, sys, threading, warnings
from turnwise.util.terminal import guard
guard()
hostile = sys.argv[1]
warnings.warn(hostile)
logging.getLogger("turnwise.agent").warning("log %s", hostile)
thread = threading.Thread(target=lambda: 1 / 0 if not hostile else exec("raise ValueError(hostile)", {"hostile": hostile}))
thread.start(); thread.join()
raise RuntimeError(hostile)
"""


def test_uncaught_errors_warnings_and_log_lines_are_plain() -> None:
    given = HOSTILE.replace("\x00", "")
    done = subprocess.run([sys.executable, "-c", PROGRAM, given], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert not acts(done.stderr)
    for words in (f"warning: {SHOWN}", f"log {SHOWN}", f"ValueError: {SHOWN}", f"RuntimeError: {SHOWN}"):
        assert words in done.stderr


def test_an_environment_that_shouts_is_reported_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "shouting.py").write_text(
        f"class Env:\n    def reset(self, task, seed=0):\n        raise RuntimeError({HOSTILE!r})\n"
        "    def step(self, action):\n        raise NotImplementedError\n"
    )
    for words in (["envs", "--check", "shouting.py:Env"], ["play", "shouting.py:Env"], ["envs", HOSTILE.replace("\x00", "")]):
        run = [sys.executable, "-m", "turnwise", *words]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment())
        assert not acts(done.stdout + done.stderr)
        assert "[bold]m[/bold]" in (done.stdout + done.stderr).replace("\n", "")


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "FORCE_COLOR": "1", "COLUMNS": "300"}


def test_the_command_that_is_told_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "turnwise"
    script.parent.mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert command("view", "a b") == "bin/python -m turnwise view 'a b'"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert command("view", "x") == "bin/turnwise view x"
    monkeypatch.setenv("PATH", str(script.parent))
    assert command("view", "x") == "turnwise view x"
