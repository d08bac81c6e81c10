"""One process per run. A process that writes to a run folder holds a lock there, and the operating system releases the lock when the
process ends, however it ends. A lock therefore never has to be removed by hand.

The lock is on a hidden file in the folder, which records its holder. The file is removed with the lock; after a crash it remains, unlocked,
and the next holder takes it over. Readers need no lock.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any

from turnwise.util.errors import TurnwiseError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
POSIX: bool = fcntl is not None

LOCK = ".lock"
FAR = 1 << 30  # Windows locks bytes: lock bytes that are never read
NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
POLL = 0.1


class Lock:
    """The lock of a folder, held until `release` or the end of this process. `doing` describes the holder's activity in one word;
    `patience` is how many seconds to wait for another holder. On a file system without locks, `say` gets a warning."""

    def __init__(self, folder: Path, doing: str, patience: float = 0.0, say: Callable[[str], None] = lambda text: None):
        self._path = folder / LOCK
        until = time.monotonic() + patience
        while (handle := _take(self._path, say)) is None:
            if time.monotonic() >= until:
                raise TurnwiseError(in_use(folder))
            time.sleep(POLL)
        self._handle: int | None = handle
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S"), "doing": doing}
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(owner).encode())

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if POSIX:  # Windows cannot remove an open file
            self._path.unlink(missing_ok=True)
        os.close(handle)


def in_use(folder: Path) -> str:
    """A message about the holder of a folder's lock, and what to do."""
    owner = _owner(folder / LOCK)
    pid, host = owner.get("pid"), owner.get("host", "an unknown machine")
    if pid == os.getpid() and host == socket.gethostname():
        return f"{folder} is in use by this process ({owner.get('doing')}, since {owner.get('since')}): wait until that ends"
    who = f"process {pid} on {host} ({owner.get('doing')}, since {owner.get('since')})" if pid else "another process"
    stop = f"`kill {pid}` there" if pid else "Ctrl-C there"
    return (
        f"{folder} is in use: {who} writes in it, and two would spoil each other's files. Nothing was changed. Wait until it has ended, or "
        f"stop it with {stop}, which saves first; look at the run in the meantime with `turnwise view {quote(str(folder))}`"
    )


def is_held(folder: Path) -> bool:
    """Whether a process currently holds the folder's lock."""
    if not (folder / LOCK).exists():
        return False
    handle = _take(folder / LOCK)
    if handle is not None:
        os.close(handle)
    return handle is None


def _take(path: Path, say: Callable[[str], None] = lambda text: None) -> int | None:
    """A handle that holds the lock; none if another process holds it."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise TurnwiseError(f"{path.parent} cannot be written ({error.strerror or error})") from None
        try:
            _lock(handle)
        except OSError as error:
            if error.errno not in NO_LOCKS_HERE:
                os.close(handle)
                return None
            say(f"warning: the file system of {path.parent} does not support locks: make sure that no second process writes there")
            return handle
        if _is_at(handle, path):
            return handle
        os.close(handle)  # its last holder has removed it in the meantime


def _lock(handle: int) -> None:
    if POSIX:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    windows: Any = import_module("msvcrt")
    os.lseek(handle, FAR, os.SEEK_SET)
    try:
        windows.locking(handle, windows.LK_NBLCK, 1)
    finally:
        os.lseek(handle, 0, os.SEEK_SET)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _owner(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it was just removed, or is being written
        return {}
    return found if isinstance(found, dict) else {}
