"""What this machine has."""

from __future__ import annotations

import os

SMALL_MACHINE = 8 * 2**30


def all_memory() -> int:
    """The machine's memory in bytes; a modest guess if the system does not tell, such as Windows."""
    if not hasattr(os, "sysconf"):
        return SMALL_MACHINE
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
