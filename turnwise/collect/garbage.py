"""Python's search for garbage, less often while attempts are played.

Python counts the containers that were made and not freed, and after every 700 of them looks through the young ones for cycles that nobody
holds, now and then through all there are. A collection makes little garbage of that kind and many long lists of tokens that stay, so the
search reads every prompt several times, and all of torch and transformers every few iterations, to find nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

CONTAINERS = 50_000  # rarely enough to cost nothing, and often enough for an environment that leaves cycles behind


@contextmanager
def rare_searches(containers: int = CONTAINERS) -> Iterator[None]:
    """Search only after so many containers, inside. Somebody's larger number, or a search that is off (0), stays as it is."""
    before = gc.get_threshold()
    if 0 < before[0] < containers:
        gc.set_threshold(containers, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
