"""A word to whoever waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def told_after(seconds: float, say: Callable[[str], None], text: str) -> Iterator[None]:
    """Says the text once if what is inside takes longer than that."""
    timer = threading.Timer(seconds, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
