"""Where text meets a terminal: as text, which never acts, whoever wrote it. Also what a person can type there to call Turnwise again."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import traceback
import warnings
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import TextIO

from turnwise.util.printable import plain


def say(text: str, *, err: bool = False, style: str = "", end: str = "\n") -> None:
    """Print a text as it is, neither coloured nor wrapped, but safe; `style` (red, bold …) counts on a terminal alone."""
    stream = sys.stderr if err else sys.stdout
    if style:
        from turnwise.util.console import Console

        return Console(stderr=err).print(text, style=style, soft_wrap=True, end=end)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(plain(text).encode(encoding, "replace").decode(encoding) + end)
    stream.flush()
    return None


def command(*words: str) -> str:
    """A command line that a person can type here: `turnwise` where the shell finds this one, else where it lies, else as a module."""
    return " ".join([program(), *map(quote, words)])


def program() -> str:
    """What calls Turnwise from a shell here."""
    beside = Path(sys.executable).with_name("turnwise")
    if beside.is_file():
        found = shutil.which("turnwise")
        return "turnwise" if found is not None and Path(found).absolute() == beside.absolute() else quote(_near(beside))
    python = shutil.which("python")
    same = python is not None and Path(python).absolute() == Path(sys.executable).absolute()
    return f"{'python' if same else quote(_near(Path(sys.executable)))} -m turnwise"


def _near(path: Path) -> str:
    """A path as short as it can be typed from here."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def guard() -> None:
    """For a program of its own: whatever Python itself prints (uncaught errors, warnings, log lines) is made plain too."""
    for stream in (sys.stdout, sys.stderr):
        if callable(change := getattr(stream, "reconfigure", None)):
            change(errors="replace")  # a terminal without umlauts shows question marks instead of failing
    sys.excepthook = _uncaught
    threading.excepthook = lambda told: _uncaught(told.exc_type, told.exc_value or told.exc_type(), told.exc_traceback)
    warnings.showwarning = _warned
    logging.setLogRecordFactory(PlainRecord)


class PlainRecord(logging.LogRecord):
    """A line of a log whose words cannot act."""

    def getMessage(self) -> str:
        return plain(super().getMessage())


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    say("".join(traceback.format_exception(kind, error, trace)), err=True, end="")


def _warned(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    if file is not None:
        file.write(plain(warnings.formatwarning(message, category, filename, lineno, line)))
    else:
        say(f"warning: {message}", err=True)
