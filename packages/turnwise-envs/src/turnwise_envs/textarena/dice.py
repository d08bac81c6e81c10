"""A game's own randomness.

The games draw from the generators that all code of a process shares: Python's `random` and numpy's. `Dice` keeps the states of both for one
game. While the game computes they are put in place of the process's, under a lock, and afterwards everything is as it was before. So games
that are played side by side, also in threads, give the same results as games that are played alone, and nothing outside notices them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np

_LOCK = RLock()


class Dice:
    """The generators of one game. `numpy`: whether the game uses numpy's, whose state takes longer to exchange than most games compute."""

    def __init__(self, seed: int, numpy: bool = True):
        self._uses_numpy = numpy
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def held(self, keep: bool = True) -> Iterator[None]:
        """The process draws from this game's generators. Without `keep`, what is drawn here is drawn again later."""
        with _LOCK:
            outside = random.getstate()
            random.setstate(self._python)
            try:
                if self._uses_numpy:
                    with self._numpy_held(keep):
                        yield
                else:
                    yield
            finally:
                if keep:
                    self._python = random.getstate()
                random.setstate(outside)

    @contextmanager
    def _numpy_held(self, keep: bool) -> Iterator[None]:
        outside = np.random.get_state()  # noqa: NPY002  # what the games themselves draw from
        np.random.set_state(self._numpy)  # noqa: NPY002
        try:
            yield
        finally:
            if keep:
                self._numpy = np.random.get_state()  # noqa: NPY002
            np.random.set_state(outside)  # noqa: NPY002
