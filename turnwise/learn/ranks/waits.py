"""How long this process waits for the other ranks: the time that it spends in exchanges with them.

Whoever comes first to an exchange waits in it for the others, and the slowest one hardly waits at all. So the process that is in exchanges
for the shortest time is the one that the others wait for. On a CPU an exchange blocks, and a clock measures it. On a GPU it is an operation
of a stream, measured by events before and after it; computation that runs beside it is not subtracted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Waits:
    """The exchanges of one process."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._events: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()  # of exchanges that were not added yet

    @contextmanager
    def exchange(self, tensor: Tensor | None = None) -> Iterator[None]:
        """Inside, this process exchanges something with the others: this tensor, or numbers on the CPU."""
        if tensor is not None and tensor.is_cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._events.append((begin, end))
            return
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - began

    @property
    def seconds(self) -> float:
        """So far. Exchanges that a GPU has not finished are added later."""
        while self._events and self._events[0][1].query():
            begin, end = self._events.popleft()
            self._seconds += begin.elapsed_time(end) / 1000
        return self._seconds


waits = Waits()  # of this process
