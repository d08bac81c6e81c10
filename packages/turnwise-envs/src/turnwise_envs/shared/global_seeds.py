"""Third-party packages that draw from the generators that all code of a process shares."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Python's and numpy's global generators in a state that depends on the seed alone. Afterwards they are as before."""
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002  (what the packages draw from)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
