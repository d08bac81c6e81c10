"""Fewer, cheaper garbage collections while attempts are played.

Python counts containers that were created and not freed. After every 700 of them it scans the young ones for unreachable cycles, and
occasionally it scans all of them. Playing attempts leaves few cycles and many long-lived lists of tokens. By default, the collector
therefore scans every prompt several times, and all of torch and transformers every few iterations, without finding anything: a fifth of
all that the host does in an iteration.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

CONTAINERS = 250_000  # more than an iteration of some thousand turns makes, few enough for an environment that leaves cycles behind


@contextmanager
def rare_searches(containers: int = CONTAINERS) -> Iterator[None]:
    """Inside the block, collect only after this many containers. A larger number set by the user, or a disabled collector (0), is kept."""
    before = gc.get_threshold()
    if 0 < before[0] < containers:
        gc.set_threshold(containers, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def search_between() -> None:
    """Search what is left of an iteration after its batch is gone: cheap, because the tokens of its prompts are not there any more. This
    has no effect if other code has disabled the collector."""
    if gc.isenabled() and gc.get_threshold()[0]:
        gc.collect(1)


def play_only() -> None:
    """For a process that does nothing but play: exclude what is loaded from every collection, and collect rarely from now on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(CONTAINERS, gc.get_threshold()[0]), *gc.get_threshold()[1:])
