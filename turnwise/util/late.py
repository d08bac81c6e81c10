"""A part that is built when it is first needed. Used where the moment matters: an engine takes its cache from the memory of a GPU that is
left, so it is built after the learner has its weights, and after a warm start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closes(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closes)


class Late(Generic[T]):
    """Calling it returns the part, which `build` makes the first time. `built` is None before that."""

    def __init__(self, build: Callable[[], T]):
        self._build = build
        self.built: T | None = None

    def __call__(self) -> T:
        if self.built is None:
            self.built = self._build()
        return self.built

    def close(self) -> None:
        """Close the part, if it was built."""
        if self.built is not None:
            self.built.close()
