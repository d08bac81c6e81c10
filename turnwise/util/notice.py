"""A message for a user who is waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def told_after(seconds: float, say: Callable[[str], None], text: str) -> Iterator[None]:
    """Print the text once if the block takes longer than this."""
    timer = threading.Timer(seconds, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
