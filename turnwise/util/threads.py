"""The number of threads that torch uses, and how they wait.

Too many threads slow a model down, and threads that spin while they wait take cores from other processes: two runs of a tiny model on two
cores once took several times as long as one after the other. Waiting threads therefore sleep, and a small model gets one thread.
OMP_NUM_THREADS, OMP_WAIT_POLICY and the recipe's `threads` take precedence.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PER_THREAD = 1_000_000  # parameters per thread, measured on two cores
CORES = "TURNWISE_CORES"  # how many of the machine's cores a process may use if it shares them with others
QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}  # GNU's and LLVM's OpenMP


def wait_quietly() -> None:
    """Let idle threads sleep instead of spinning. OpenMP reads this when torch is first imported; later it has no effect."""
    if "torch" not in sys.modules and not any(name in os.environ for name in QUIET):
        os.environ.update(QUIET)


def cores() -> int:
    """The cores that this process may use, according to TURNWISE_CORES, its affinity, and the limit of its container."""
    if (share := os.environ.get(CORES, "")).isdigit() and int(share) > 0:
        return int(share)
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return mine if quota == "max" else max(1, min(mine, int(quota) // int(period)))
    except (OSError, ValueError):
        return mine


def told() -> int | None:
    """The number of threads in OMP_NUM_THREADS; None if it is not set."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else None


_requested = False


def request(asked: int | None) -> None:
    """Note whether a recipe says how many threads there are."""
    global _requested
    _requested = asked is not None


def at_once(used: int) -> int:
    """How many pieces of independent work may run at the same time if each takes so many threads: two if there are cores for them, and
    one if the number of threads was requested. More than two were not measured: they also wait for Python's lock."""
    return 1 if _requested or told() else max(1, min(2, cores() // used))


def threads_for(parameters: int, asked: int | None = None) -> int:
    """Threads for a model of this size: as requested (by the recipe, then by OMP_NUM_THREADS), else one per `PER_THREAD` parameters and at
    most one per core."""
    return asked or told() or min(cores(), 1 + parameters // PER_THREAD)


SMALL_MACHINE = 8 * 2**30


def all_memory() -> int:
    """The machine's memory in bytes; a modest guess if the system does not tell, such as Windows."""
    if not hasattr(os, "sysconf"):
        return SMALL_MACHINE
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
