"""Python's search for garbage, kept away from what is no garbage.

Python counts the containers that were made and not freed, and after every 700 of them looks through the young ones for cycles that nobody
holds any more; now and then it looks through all there are. Attempts being played leave few cycles and many long lists of tokens that stay,
so the search reads every prompt several times, and all of torch and transformers every few iterations, to find nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

CONTAINERS = 50_000  # rarely enough to cost little, and often enough for an environment that leaves cycles behind


@contextmanager
def rare_searches(containers: int = CONTAINERS) -> Iterator[None]:
    """Inside, search only after so many containers. Somebody's larger number, or a search that is off (0), stays as it is."""
    before = gc.get_threshold()
    if 0 < before[0] < containers:
        gc.set_threshold(containers, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def loaded_set_apart() -> Iterator[None]:
    """Inside, leave out of every search what is there at the beginning: modules, models, settings. Nothing changes where somebody else
    has set things apart already."""
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
