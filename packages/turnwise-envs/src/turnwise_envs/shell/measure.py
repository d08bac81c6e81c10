"""What the processes of a sandbox hold, as far as /proc shows it from outside. Nothing here waits for one of them
except `kernel_memory`, for which a process may have to give its list of mappings free.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

OWNED = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap|VmPTE|HugetlbPages):\s+(\d+) kB$", re.MULTILINE)
HANDLE, SOCKET, CONNECTION = 32 << 10, 512 << 10, 3 << 20  # bytes that the kernel may hold for one of them
MAPPED, MAPPINGS = 1 << 16, 16 << 20  # bytes of a long list of mappings, and those that the kernel holds for the longest
INODE = 1400  # bytes that the kernel holds for a file


def below(pid: int) -> list[int]:
    """The processes from this one down, parents first."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < 10_000:
        one = waiting.pop()
        with suppress(OSError):
            for thread in names(f"/proc/{one}/task"):
                with suppress(OSError):
                    waiting += [int(child) for child in _start_of(f"/proc/{one}/task/{thread}/children", 1 << 20).split()]
            found.append(one)
    return found


def members(pid: int) -> list[tuple[int, set[str]]]:
    """The same, with the states of their threads."""
    found = []
    for one in below(pid):
        states = set()
        with suppress(OSError):
            for thread in names(f"/proc/{one}/task"):
                with suppress(OSError):
                    states.add(_start_of(f"/proc/{one}/task/{thread}/stat", 4096).rpartition(b")")[2][1:2].decode())
        if states:
            found.append((one, states))
    return found


def memory_of(processes: Sequence[int]) -> int:
    """The memory that these processes hold: pages, and the tables of pages."""
    memory = 0
    for one in processes:
        with suppress(OSError):
            memory += sum(int(size) for size in OWNED.findall(_start_of(f"/proc/{one}/status", 1 << 14))) << 10
    return memory


def kernel_memory(processes: Sequence[int]) -> int:
    """An estimate from above of what the kernel holds for these processes: behind their handles, and for their mappings."""
    memory = 0
    for one in processes:
        with suppress(OSError):
            memory += HANDLE * max(0, (Path(f"/proc/{one}/fd").stat().st_size or len(names(f"/proc/{one}/fd"))) - 8)
            memory += MAPPINGS * (len(_start_of(f"/proc/{one}/maps", MAPPED)) == MAPPED)
    return memory


def socket_memory(pid: int) -> int:
    """The same for the sockets of the sandbox."""
    with suppress(OSError, IndexError, ValueError):
        sockets, _, rest = _start_of(f"/proc/{pid}/net/sockstat", 4096).partition(b"\n")
        return SOCKET * max(0, int(sockets.split()[-1]) - 8) + CONNECTION * max(0, int(rest.split()[2]) - 8)
    return 0


def names(folder: str | int) -> list[str]:
    with os.scandir(folder) as listing:
        return [item.name for item in listing]


def _start_of(path: str, most: int) -> bytes:
    """The first bytes of a file of /proc, of which one call gives a part."""
    handle, parts = os.open(path, os.O_RDONLY), []
    try:
        while most > 0 and (part := os.read(handle, min(most, 1 << 16))):
            parts.append(part)
            most -= len(part)
    finally:
        os.close(handle)
    return b"".join(parts)


def stored(store: int) -> int:
    """Bytes that a file system in memory holds."""
    status = os.fstatvfs(store)
    return (status.f_blocks - status.f_bfree) * status.f_frsize + (status.f_files - status.f_ffree) * INODE
