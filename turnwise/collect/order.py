"""The order in which the environments' answers are passed on.

A model's numbers depend in their last digits on which prompts share a forward pass. Worker processes answer at random times, so passing
their answers on as they arrive gives different batches, different digits and in the end different weights whenever a run is repeated.
Here they are passed on in the order of the requests, and the moment is counted in attempts instead of seconds: up to a third of the
attempts may wait for their environments while the model generates for the others. Beyond that the oldest answer is waited for.
Environments and model still work in parallel, and neither the clock nor the number of worker processes changes a result.

The cost: an environment that takes very long holds up the others, once a third of them have been asked after it.
"""

from __future__ import annotations

from collections import deque

from turnwise.envs.pool import Ask, EnvResult, Pool

AWAY = 3  # one in this many attempts may wait for its environment while the model generates


class Answers:
    """The results of a pool's requests. `ordered`: in the order asked for; otherwise as they come."""

    def __init__(self, pool: Pool, ordered: bool):
        self._pool, self._ordered = pool, ordered
        self._asked: deque[int] = deque()  # slots whose result was not passed on yet, the oldest request first
        self._here: dict[int, EnvResult] = {}

    def submit(self, slot: int, request: Ask) -> None:
        self._pool.submit(slot, request)
        self._asked.append(slot)

    def next(self, thinking: bool, attempts: int) -> list[EnvResult]:
        """Results to continue with, at least one unless the model is `thinking` for some attempt; `attempts` are under way."""
        if not self._ordered:
            return self._pool.results(timeout=0 if thinking else None)
        away = attempts // AWAY if self._pool.pids else 0  # in this process every answer is there at once
        results: list[EnvResult] = []
        while len(self._asked) > away or (self._asked and not thinking and not results):
            slot = self._asked.popleft()
            while slot not in self._here:
                self._receive(None)
            results.append(self._here.pop(slot))
        self._receive(0)  # a worker whose answer is not read cannot continue
        return results

    def receive(self) -> None:
        """Take what has arrived, to pass it on in order."""
        if self._ordered:
            self._receive(0)

    def _receive(self, timeout: float | None) -> None:
        self._here.update((result.slot, result) for result in self._pool.results(timeout))

    def drop(self) -> None:
        """Wait for all pending requests and drop their results: the pool needs every result taken before a slot is used again."""
        while self._pool.pending:
            self._pool.results()
        self._asked.clear()
        self._here.clear()
