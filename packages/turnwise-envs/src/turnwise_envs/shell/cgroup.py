"""A limit that the kernel itself keeps on all memory of a sandbox: processes, files, and what the kernel holds for them.

    available()                               # whether a group can be had
    start = prefix(512 << 20) + command       # a user's systemd makes the group
    group = join(512 << 20, [pid])            # or this process does
    group.broken()                            # whether the kernel had to end a process
    group.close()

A group is a folder of the kernel's: below this process's own group, beside it, or at the top, wherever this user may make one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LIMITS = (("memory.max", "memory.swap.max"), ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"))  # of version 2, of version 1
EVENTS = ("memory.events", "memory.oom_control")
_number = count()


@dataclass(frozen=True)
class Group:
    """A group with a limit. `made`: by this process, which removes it."""

    folder: Path
    made: bool = True

    def broken(self) -> bool:
        """Whether the kernel ended a process because the limit was reached."""
        for name in EVENTS:
            with suppress(OSError):
                found = re.search(r"^oom_kill ([1-9]\d*)$", (self.folder / name).read_text(), re.MULTILINE)
                return found is not None
        return False

    def close(self) -> bool:
        """Remove it; False while a process is in it."""
        if self.made:
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return True
            except OSError:
                return False
        return True


def join(limit: int, pids: Sequence[int]) -> Group | None:
    """Put processes into a group of their own, or find the one that systemd made for them; None if none can be had."""
    if not available():
        return None
    if (parent := _parent(os.getpid())) is not None:
        return _made(parent, limit, pids)
    group = Group(ROOT / _own(f"/proc/{pids[0]}/cgroup", "").lstrip("/"), made=False)
    if (group.folder / "memory.max").read_text().strip() != str(limit):
        raise OSError(f"systemd gave the group {group.folder} another limit than {limit} bytes")
    return group


def available() -> bool:
    """Whether a group can be had."""
    return _parent(os.getpid()) is not None or _by_systemd()


@cache
def say_if_missing() -> None:
    """Warn, once, if none can be had."""
    if not available():
        warnings.warn(
            "shell: no cgroup can be had here, so the kernel does not limit the memory of a sandbox as a whole; it is measured every few "
            "milliseconds instead. docs/environments/shell.md says which limits hold, and how to allow a cgroup",
            stacklevel=3,
        )


@cache
def _parent(process: int) -> Path | None:
    """The first folder in which this process can make a group and put another process into it."""
    for parent in _parents():
        with suppress(OSError), subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as other:
            try:
                group = _made(parent, 64 << 20, [other.pid])
            finally:
                other.kill()
                other.wait()
            group.close()
            return parent
    return None


def _made(parent: Path, limit: int, pids: Sequence[int]) -> Group:
    group = Group(parent / f"turnwise-{os.getpid()}-{next(_number)}")
    group.folder.mkdir()
    try:
        first, swap = LIMITS[0] if _second(parent) else LIMITS[1]
        if not (group.folder / first).exists():
            (parent / "cgroup.subtree_control").write_text("+memory")
        (group.folder / first).write_text(str(limit))
        if (group.folder / swap).exists():
            (group.folder / swap).write_text("0" if swap == "memory.swap.max" else str(limit))
        for pid in pids:
            (group.folder / "cgroup.procs").write_text(str(pid))
    except OSError:
        group.close()
        raise
    return group


def _second(folder: Path) -> bool:
    """Whether it belongs to version 2."""
    return (folder / "cgroup.controllers").exists()


def _parents() -> list[Path]:
    """Where a group might be made. What a killed process left there is removed."""
    found: list[Path] = []
    for root, controller in ((ROOT, ""), (ROOT / "memory", "memory")):
        with suppress(OSError, LookupError):
            own = root / _own("/proc/self/cgroup", controller).lstrip("/")
            if _second(root) == (controller == ""):
                found += [path for path in dict.fromkeys((own, own.parent, root)) if path.is_relative_to(root) and path.is_dir()]
    for path in found:
        for left in path.glob("turnwise-*-*"):
            if not Path("/proc", left.name.split("-")[1]).exists():
                with suppress(OSError):
                    left.rmdir()
    return found


def _own(path: str, controller: str) -> str:
    """The group of a process, in the hierarchy of a controller; of version 2 if that is empty."""
    lines = [line.split(":", 2) for line in Path(path).read_text().splitlines()]
    return next(group for _, controllers, group in lines if controller in controllers.split(","))


@cache
def _by_systemd() -> bool:
    """Whether this user's systemd gives a group with a limit."""
    runs = shutil.which("systemd-run")
    if os.geteuid() == 0 or runs is None or not Path(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"), "systemd").is_dir():
        return False
    words = [*_scope(runs, 64 << 20), "cat", "/proc/self/cgroup"]
    with suppress(OSError, subprocess.SubprocessError, LookupError):
        shown = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout
        return "/run-" in shown and "memory" in _controllers(shown)
    return False


def _controllers(shown: str) -> str:
    """The controllers of the group that holds a scope, from what the scope printed."""
    group = next(line[3:] for line in shown.splitlines() if line.startswith("0::"))
    return (ROOT / group.lstrip("/")).parent.joinpath("cgroup.subtree_control").read_text()


def _scope(runs: str, limit: int) -> list[str]:
    return [runs, "--user", "--scope", "--quiet", "--collect", f"--property=MemoryMax={limit}", "--property=MemorySwapMax=0", "--"]


def prefix(limit: int) -> list[str]:
    """Words before a command, so that systemd starts it in a group; none if this process makes the group itself."""
    return _scope(str(shutil.which("systemd-run")), limit) if _parent(os.getpid()) is None and _by_systemd() else []
