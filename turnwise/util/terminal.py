"""Terminal output: sanitised text that cannot control the terminal. Also the command line that a user can type to call Turnwise again."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import TextIO

from turnwise.util.printable import SHOWN, printable


def say(text: str, *, err: bool = False, style: str = "", end: str = "\n") -> None:
    """Print sanitised text without colouring or wrapping it. `style` (red, bold …) applies only on a terminal."""
    stream = sys.stderr if err else sys.stdout
    SHOWN.set()
    if style:
        from turnwise.util.console import Console

        return Console(stderr=err).print(text, style=style, soft_wrap=True, end=end)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(printable(text).encode(encoding, "replace").decode(encoding) + end)
    stream.flush()
    return None


@contextlib.contextmanager
def only_results() -> Iterator[None]:
    """Keep standard output for the result: what an environment or a package prints goes to standard error, also from processes that are
    started inside."""
    sys.stdout.flush()
    kept = -1
    with contextlib.suppress(OSError):
        kept = os.dup(1)
        os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept >= 0:
            os.dup2(kept, 1)
            os.close(kept)


def command(*words: str) -> str:
    """A command line that the user can type here: `turnwise` if the shell finds this one, else its path, else as a module."""
    return " ".join([program(), *map(quote, words)])


def program() -> str:
    """The shell command that calls Turnwise here."""
    beside = Path(sys.executable).with_name("turnwise")
    if beside.is_file():
        found = shutil.which("turnwise")
        return "turnwise" if found is not None and Path(found).absolute() == beside.absolute() else quote(_near(beside))
    return f"{python()} -m turnwise"


def python() -> str:
    """The shell command of the Python that has Turnwise."""
    found = shutil.which("python")
    same = found is not None and Path(found).absolute() == Path(sys.executable).absolute()
    return "python" if same else quote(_near(Path(sys.executable)))


def _near(path: Path) -> str:
    """The shortest form of a path from here."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def guard() -> None:
    """For a standalone program: also sanitise what Python itself prints (uncaught errors, warnings, log lines)."""
    for stream in (sys.stdout, sys.stderr):
        if callable(change := getattr(stream, "reconfigure", None)):
            change(errors="replace")  # a terminal with a limited encoding shows question marks instead of failing
    sys.excepthook = _uncaught
    threading.excepthook = lambda told: _uncaught(told.exc_type, told.exc_value or told.exc_type(), told.exc_traceback)
    warnings.showwarning = _warned
    logging.setLogRecordFactory(PlainRecord)


class PlainRecord(logging.LogRecord):
    """A sanitised log line."""

    def getMessage(self) -> str:
        return printable(super().getMessage())


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    say("".join(traceback.format_exception(kind, error, trace)), err=True, end="")


def _warned(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    if file is not None:
        file.write(printable(warnings.formatwarning(message, category, filename, lineno, line)))
    else:
        say(f"warning: {message}", err=True)


class Once:
    """Passes a text on to `say` the first time; of texts with the same `key` only the first."""

    def __init__(self, say: Callable[[str], None]):
        self._say, self._told = say, set[str]()

    def __call__(self, text: str, key: str | None = None) -> None:
        if (key or text) not in self._told:
            self._told.add(key or text)
            self._say(text)


def still_loading(seconds: float = 1.0) -> AbstractContextManager[None]:
    """For the command line: if nothing has been shown for so long, a line says what is waited for."""

    def tell(text: str) -> None:
        if not SHOWN.is_set():
            packages = [name for name in ("torch", "transformers") if name in sys.modules]
            say(f"  {text} {' and '.join(packages)}".rstrip() + " …", err=True)

    return told_after(seconds, tell, "loading")


@contextmanager
def told_after(seconds: float, say: Callable[[str], None], text: str) -> Iterator[None]:
    """Print the text once if the block takes longer than this."""
    timer = threading.Timer(seconds, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
