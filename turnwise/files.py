"""Writing files so that a reader, or a crash, never sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from turnwise.errors import TurnwiseError


def write_atomically(path: str | Path, write: Callable[[BinaryIO], Any]) -> Path:
    """Call `write` with an open binary file beside `path`, flush it to the disk, then put it in place in one step.
    If anything fails, what was at `path` before is still there."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp gives 0600; a result file should be as readable as any other
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def write_text_atomically(path: str | Path, text: str) -> Path:
    """The same for a text, as UTF-8."""
    return write_atomically(path, lambda file: file.write(text.encode("utf-8", "surrogatepass")))


def inside(folder: str | Path, path: str | Path) -> Path:
    """The path, which stays in the folder when links are followed: a run from elsewhere must not point at other files of this machine."""
    path = Path(path)
    try:
        away = not path.resolve().is_relative_to(Path(folder).resolve())
    except (OSError, RuntimeError):  # links that lead to each other
        away = True
    if away:
        raise TurnwiseError(f"{path} is a link that leads out of {folder}: what it points at is no part of it. Replace it by the file itself")
    return path
