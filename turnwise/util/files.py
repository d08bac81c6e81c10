"""Writing files so that a reader, or a crash, never sees half of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from turnwise.util.errors import TurnwiseError

Made = TypeVar("Made")
PART = ".part"  # how the names of unfinished files end


def write_atomically(path: str | Path, write: Callable[[BinaryIO], Any]) -> Path:
    """Call `write` with an open binary file beside `path`, flush it to the disk, then put it in place in one step.
    If anything fails, what was at `path` before is still there."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = file_beside(path, PART)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def write_text_atomically(path: str | Path, text: str) -> Path:
    """The same for a text, as UTF-8."""
    return write_atomically(path, lambda file: file.write(text.encode("utf-8", "surrogatepass")))


def sweep_files(folder: Path, names: Sequence[str] | None = None) -> None:
    """Remove what killed writers of these files (none: of any) left beside them. Call it where nobody else writes them."""
    for name in ["*"] if names is None else [escape(name) for name in names]:
        for part in folder.glob(f".{name}.*{PART}"):
            part.unlink(missing_ok=True)


def inside(folder: str | Path, path: str | Path) -> Path:
    """The path, which stays in the folder when links are followed: a run from elsewhere must not point at other files of this machine."""
    path = Path(path)
    try:
        away = not path.resolve().is_relative_to(Path(folder).resolve())
    except (OSError, RuntimeError):  # links that lead to each other
        away = True
    if away:
        raise TurnwiseError(
            f"{path} is a link that leads out of {folder}: what it points at is no part of it. Replace it by the file itself"
        )
    return path


def file_beside(path: Path, suffix: str) -> tuple[int, Path]:
    """A new hidden file beside `path`, open for writing: its handle and its name. Who may read it is the umask's to say, as of any other
    file; Python's own temporary files are their owner's alone."""
    return _unused(path, suffix, lambda new: os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666))


def folder_beside(path: Path, suffix: str) -> Path:
    """A new hidden folder beside `path`, as accessible as any other."""
    return _unused(path, suffix, lambda new: new.mkdir())[1]


def as_readable_as_their_folder(folder: Path) -> None:
    """Give the files of a folder the access that the folder itself has: some libraries write files that only their owner may read."""
    mode = folder.stat().st_mode & 0o777
    for path in folder.rglob("*"):
        path.chmod(mode if path.is_dir() else mode & 0o666)


def _unused(path: Path, suffix: str, make: Callable[[Path], Made]) -> tuple[Made, Path]:
    while True:
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}{suffix}")
        try:
            return make(new), new
        except FileExistsError:
            continue
