"""Reading Python source from any thread.

CPython 3.11.7, among others, counts the depth of the syntax tree that it builds in one place for all threads. If another thread parses
in the middle of `ast.parse` (or of `inspect.getsource` of a class), this ends with a SystemError or a RecursionError although the
source is fine.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TypeVar

T = TypeVar("T")
TRIES = 20

_alone = RLock()


def undisturbed(parse: Callable[[], T]) -> T:
    """What `parse` returns. Our own threads parse one after the other; if a library's thread disturbs, `parse` is called again."""
    with _alone:
        for _ in range(TRIES - 1):
            try:
                return parse()
            except (SystemError, RecursionError):
                continue
        return parse()
