"""The on-disk cache of unpacked corpora, word indices and embeddings.

Everything is under `$TURNWISE_CACHE` (default `~/.cache/turnwise`) and may be deleted at any time. If many processes ask for the same entry
at once, one builds it under a lock and the others wait. Folders are created atomically.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

from turnwise.util import files
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import folder_beside

try:
    import fcntl
except ImportError:  # no such locks on this system: concurrent processes may build the same entry twice
    fcntl = None  # type: ignore[assignment]


def cache_folder() -> Path:
    """The folder of the retrieval cache."""
    return files.cache_folder("retrieval")


def file_key(path: Path) -> str:
    """A name for this version of a file: a different size or modification time is a different file."""
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
    """The folder; if it does not exist, `build` creates it in a temporary folder next to it first."""
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
            raise TurnwiseError(f"{folder}: cannot be written ({error.strerror}). Set TURNWISE_CACHE to a folder with more space") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder
