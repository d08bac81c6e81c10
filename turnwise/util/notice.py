"""Messages for a user: after a while, or only once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Once:
    """Passes a text on to `say` the first time; of texts with the same `key` only the first."""

    def __init__(self, say: Callable[[str], None]):
        self._say, self._told = say, set[str]()

    def __call__(self, text: str, key: str | None = None) -> None:
        if (key or text) not in self._told:
            self._told.add(key or text)
            self._say(text)


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
