"""Work of the host in a thread, while this thread waits for a GPU.

Threads share Python's lock, so such work has to be polite: between small pieces, of a millisecond or so, it calls the `pause` that it is
given. A thread that computes in Python then gets the lock back at once, and one that waits for a GPU is not disturbed at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAUSE = 0.0005  # seconds
BEGIN = 0.1  # seconds: an update begins with work of the host
Pause = Callable[[], object]


@contextmanager
def background(*works: Callable[[Pause], None]) -> Iterator[Callable[[], None]]:
    """Do these works, one after another, in a thread while the block runs. The block gets a function that waits for them, now without
    pauses, and raises their first error. The end of the block does the same; an error of the block itself goes before one of theirs."""
    hurry, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            hurry.wait(BEGIN)
            for work in works:
                work(lambda: hurry.wait(PAUSE))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="turnwise-background")

    def wait() -> None:
        hurry.set()
        thread.join()
        if errors:
            raise errors[0]

    thread.start()
    try:
        yield wait
    except BaseException:
        hurry.set()
        thread.join()
        raise
    wait()
