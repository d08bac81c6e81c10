"""Atomic file writes: neither a reader nor a crash ever sees a partial file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from turnwise.util.errors import TurnwiseError

Made = TypeVar("Made")
PART = ".part"  # suffix of unfinished files


def write_atomically(path: str | Path, write: Callable[[BinaryIO], Any]) -> Path:
    """Call `write` with an open binary file next to `path`, flush it to disk, then rename it to `path` atomically.
    If anything fails, the previous file at `path` is unchanged."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # as any other file, with the permissions of the umask: Python's own temporary files are readable only by their owner
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    handle, temporary = _unused(path, PART, lambda new: os.open(new, flags, 0o666))
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
    """The same for text, as UTF-8."""
    return write_atomically(path, lambda file: file.write(text.encode("utf-8", "surrogatepass")))


def sweep_files(folder: Path, names: Sequence[str] | None = None) -> None:
    """Remove temporary files that killed writers of these files (none: of any file) left behind. Call it only if no other process writes
    them."""
    for name in ["*"] if names is None else [escape(name) for name in names]:
        for part in folder.glob(f".{name}.*{PART}"):
            part.unlink(missing_ok=True)


def inside(folder: str | Path, path: str | Path) -> Path:
    """The path, if it stays in the folder after following links: a run from elsewhere must not point to other files of this machine."""
    path = Path(path)
    try:
        away = not path.resolve().is_relative_to(Path(folder).resolve())
    except (OSError, RuntimeError):  # circular links
        away = True
    if away:
        raise TurnwiseError(f"{path} is a link to a file outside {folder}. Replace the link with the file itself")
    return path


def folder_beside(path: Path, suffix: str) -> Path:
    """A new hidden folder next to `path`, with the usual permissions."""
    return _unused(path, suffix, lambda new: new.mkdir())[1]


def as_readable_as_their_folder(folder: Path) -> None:
    """Give the files of a folder the folder's own permissions: some libraries write files that only their owner may read."""
    mode = folder.stat().st_mode & 0o777
    for path in folder.rglob("*"):
        path.chmod(mode if path.is_dir() else mode & 0o666)


def cache_folder(kind: str) -> Path:
    """The user's folder for things of one kind that can be made or fetched again: `$TURNWISE_CACHE`, or `~/.cache/turnwise`."""
    base = os.environ.get("TURNWISE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnwise"
    return Path(base).expanduser() / kind


def _unused(path: Path, suffix: str, make: Callable[[Path], Made]) -> tuple[Made, Path]:
    while True:
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}{suffix}")
        try:
            return make(new), new
        except FileExistsError:
            continue
