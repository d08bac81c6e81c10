"""What is computed once and kept on the disk: unpacked corpora, word indices, embeddings.

Everything lies below `$TURNWISE_CACHE` (default `~/.cache/turnwise`) and may be deleted at any time. Many processes may ask for the same
thing at once: one builds it, under a lock, and the others wait; a folder appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

from turnwise.util.errors import TurnwiseError
from turnwise.util.files import folder_beside

try:
    import fcntl
except ImportError:  # no such locks on this system: processes that start together may build the same thing twice
    fcntl = None  # type: ignore[assignment]


def cache_folder() -> Path:
    """Where retrieval keeps what it has built."""
    base = os.environ.get("TURNWISE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnwise"
    return Path(base).expanduser() / "retrieval"


def file_key(path: Path) -> str:
    """A name for this version of a file: another size or time of change is another file."""
    found = path.stat()
    return key_of(str(path.resolve()), str(found.st_size), str(found.st_mtime_ns))


def key_of(*parts: str) -> str:
    """24 hex digits of some texts."""
    return blake2b("\x00".join(parts).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time builds this folder."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f".{folder.name}.lock").open("w")
    except OSError as error:
        raise TurnwiseError(f"{folder.parent}: cannot be written ({error.strerror}). Set TURNWISE_CACHE to another folder") from None
    with lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """The folder, made by `build` in a temporary place beside it where it does not exist yet."""
    if folder.is_dir():
        return folder
    with locked(folder):
        if folder.is_dir():
            return folder
        temporary = folder_beside(folder, ".part")
        try:
            build(temporary)
            temporary.rename(folder)
        except OSError as error:
            raise TurnwiseError(f"{folder}: cannot be written ({error.strerror}). Set TURNWISE_CACHE to a folder with more room") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder
