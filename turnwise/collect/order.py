"""In which order the environments' answers are passed on.

A model's numbers depend in their last digits on which prompts share a forward pass. Worker processes answer sooner or later by chance, so
passing their answers on as they come gives other batches, other digits and in the end other weights whenever a run is repeated. Here they
are passed on in the order in which they were asked for, and the moment is counted in attempts instead of seconds: up to a third of the
attempts may be with their environments while the model thinks for the others. Beyond that the oldest answer is waited for. So environments
and model still work side by side, and neither the clock nor the number of worker processes changes a number.

The price is that an environment which takes very long holds up the others, once a third of them have been asked after it.
"""

from __future__ import annotations

from collections import deque

from turnwise.data.tasks import Task
from turnwise.envs.pool import Ask, EnvResult, Pool

AWAY = 3  # one in so many attempts may be with its environment while the model thinks


class Answers:
    """The results of a pool's requests. `ordered`: in the order asked for; otherwise as they come."""

    def __init__(self, pool: Pool, ordered: bool):
        self._pool, self._ordered = pool, ordered
        self._asked: deque[int] = deque()  # slots whose result was not passed on yet, the oldest request first
        self._here: dict[int, EnvResult] = {}

    def reset(self, slot: int, task: Task, seed: int) -> None:
        self._pool.submit_reset(slot, task, seed)
        self._asked.append(slot)

    def step(self, slot: int, action: str) -> None:
        self._pool.submit_step(slot, action)
        self._asked.append(slot)

    def submit(self, slot: int, request: Ask) -> None:
        """Any request: to keep a state, or to start from one."""
        self._pool.submit(slot, request)
        self._asked.append(slot)

    def next(self, thinking: bool, attempts: int) -> list[EnvResult]:
        """Results to go on with, at least one unless the model is `thinking` for somebody; `attempts` are under way."""
        if not self._ordered:
            return self._pool.results(timeout=0 if thinking else None)
        away = attempts // AWAY if self._pool.pids else 0  # in this process every answer is there at once
        found: list[EnvResult] = []
        while len(self._asked) > away or (self._asked and not thinking and not found):
            slot = self._asked.popleft()
            while slot not in self._here:
                self._receive(None)
            found.append(self._here.pop(slot))
        self._receive(0)  # a worker whose answer nobody reads cannot play on
        return found

    def receive(self) -> None:
        """Take what is there, to pass it on in its turn."""
        if self._ordered:
            self._receive(0)

    def _receive(self, timeout: float | None) -> None:
        self._here.update((result.slot, result) for result in self._pool.results(timeout))

    def drop(self) -> None:
        """Wait for all that was asked for and forget it: the pool wants every result taken before a slot plays again."""
        while self._pool.pending:
            self._pool.results()
        self._asked.clear()
        self._here.clear()
