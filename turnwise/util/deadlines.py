"""Calls that may never return, with a deadline. They run in a thread of their own, which is left behind if they do not return in time: a
thread that waits in a library cannot be ended from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], name: str) -> Future[T]:
    """Do this in a thread that does not keep the process alive."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def within(seconds: float, what: str, work: Callable[[], T]) -> T:
    """What the work returns or raises; a TimeoutError that says `what` if it does neither in time."""
    done = begin(work, what)
    try:
        return done.result(timeout=seconds)
    except TimeoutError:
        if done.done():  # its own
            raise
        raise TimeoutError(f"{what} did not end within {seconds:g} seconds") from None
