"""Error reports about an environment: the error, and the lines of the user's own file that caused it.

A traceback of a run has dozens of lines, most of them ours or a library's. Only the lines of the user's code are kept or, if there are
none, as in an environment from a package, those of the environment.
"""

from __future__ import annotations

import inspect
import linecache
import sysconfig
import traceback
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turnwise.config.addons import MODULE
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import cache_folder
from turnwise.util.printable import printable

PACKAGE = Path(__file__).resolve().parent.parent
GUARDS = tuple(PACKAGE / file for file in ("envs/worker.py", "envs/check.py", "envs/play.py", "envs/registry.py", "collect/players.py"))
MOST_FRAMES = 8
MESSAGE_LIMIT = 500


class EnvironmentFault(TurnwiseError):
    """An environment that cannot be played. `lines` are those of the user's own file, shown below the message."""

    def __init__(self, message: str, lines: str = ""):
        super().__init__(f"{message}\n{lines}" if lines else message)
        self.message, self.lines = message, lines


def one_line(error: BaseException) -> str:
    """An exception in one printable line: its type and its message; for our own errors only the message."""
    words = printable(" ".join(str(error).split()))
    return (words if isinstance(error, TurnwiseError) else f"{type(error).__name__}: {words}")[:MESSAGE_LIMIT]


def own_lines(error: BaseException) -> str:
    """The lines of an exception's traceback in the user's files, innermost last. If there are none, those of the environment; our own
    errors say in their message all that there is to say."""
    if isinstance(error, TurnwiseError) and not _touches_user(error):
        return ""
    frames = _frames(error)
    own = [frame for frame in frames if _is_own(frame.filename)] or [frame for frame in frames if Path(frame.filename) not in GUARDS]
    cause = _cause(error)
    before = f"{own_lines(cause)}\n{one_line(cause)}, and then:\n" if cause is not None and cause.__traceback__ is not None else ""
    return before + "\n".join(_shown(frame.filename, frame.lineno, frame.name, frame.line) for frame in own[-MOST_FRAMES:])


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _touches_user(error: BaseException | None) -> bool:
    """Whether an exception, or one that it came of, passed through a file of the user."""
    return error is not None and (any(_is_own(frame.filename) for frame in _frames(error)) or _touches_user(_cause(error)))


def place_of(method: Callable[..., Any]) -> str:
    """The location of a method, in the form of a traceback line; empty if unknown."""
    while isinstance(method, partial):
        method = method.func
    code = getattr(inspect.unwrap(method), "__code__", None)
    if code is None:
        return ""
    return _shown(code.co_filename, code.co_firstlineno, code.co_name, linecache.getline(code.co_filename, code.co_firstlineno).strip())


def _shown(filename: str, line: int | None, name: str, source: str | None) -> str:
    path = Path(filename)
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return printable(f'  File "{short}", line {line}, in {name}' + (f"\n    {source}" if source else ""))


@cache
def _libraries() -> tuple[Path, ...]:
    """The folders of code that is not the user's: libraries, private packages, and `turnwise-envs`, wherever it is installed."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {Path(folder).resolve() for name in names if (folder := sysconfig.get_path(name))} | {cache_folder("packages").resolve()}
    if (addon := find_spec(MODULE)) is not None and addon.origin is not None:
        folders.add(Path(addon.origin).resolve().parent)
    return tuple(folders)


def _is_own(filename: str) -> bool:
    path = Path(filename)
    return path.is_absolute() and not any(path.is_relative_to(folder) for folder in (PACKAGE, *_libraries()))
