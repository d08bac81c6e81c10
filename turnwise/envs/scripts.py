"""Many small plays through one pool, each written as if it were alone.

A play is a generator: it yields a request (`Reset(task, seed)`, an action, `Snapshot()`, `Restore(task, seed, state)`), gets the
`EnvResult`, and returns what it found. `play_all` lets as many of them run side by side as the pool has slots and hands their findings
out in the order of the plays. So what is played before training (the words of the tiny model, a warm start's examples, a smoke test of
the environment) obeys workers, time limits, memory limits and signals like the training itself, and is the same for any number of
workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from turnwise.envs.pool import Ask, EnvResult, Pool, Reset, Restore, Snapshot

__all__ = ["Limits", "Play", "Reset", "Restore", "Snapshot", "play_all"]

ASK_SECONDS = 0.5  # how often it is asked whether to stop, while all wait for an environment
SLOTS_PER_WORKER = 2

T = TypeVar("T")


Play = Generator[Ask, EnvResult, T]


@dataclass(frozen=True)
class Limits:
    """What a recipe says about the processes that play its environment."""

    workers: int = 0
    timeout: float | None = 60.0
    memory_mb: int | None = None
    cancelled: Callable[[], bool] = field(default=lambda: False)

    def pool(self, factory: str | Callable[[], Any], plays: int, options: Mapping[str, Any] | None = None) -> Pool:
        """A pool for this many plays: in this process one environment is enough."""
        size = max(1, min(SLOTS_PER_WORKER * self.workers, plays))
        return Pool(factory, size, workers=self.workers, timeout=self.timeout, options=options, memory_mb=self.memory_mb)


def play_all(pool: Pool, plays: Iterable[Play[T]], cancelled: Callable[[], bool] = lambda: False) -> Iterator[T]:
    """What the plays return, in their order. Where cancelled, those that are done in an unbroken row from the first."""
    waiting, free = iter(plays), deque(range(pool.size))
    active: dict[int, tuple[int, Play[T]]] = {}
    outcomes: dict[int, T] = {}
    begun = yielded = 0
    while True:
        while free and not cancelled() and (play := next(waiting, None)) is not None:
            slot = free.popleft()
            active[slot] = (begun, play)
            begun += 1
            if not _go_on(pool, slot, active, outcomes, None):
                free.append(slot)
        while yielded in outcomes:
            yield outcomes.pop(yielded)
            yielded += 1
        if cancelled() or not active:
            break
        for result in pool.results(timeout=ASK_SECONDS):
            if not _go_on(pool, result.slot, active, outcomes, result):
                free.append(result.slot)
    for _, play in active.values():
        play.close()
    while pool.pending and not pool.pids:  # the pool wants every result taken before a slot plays again
        pool.results()


def _go_on(pool: Pool, slot: int, active: dict[int, tuple[int, Play[T]]], outcomes: dict[int, T], result: EnvResult | None) -> bool:
    """Give a play its result and send its next request; false where it has ended."""
    number, play = active[slot]
    try:
        request = next(play) if result is None else play.send(result)
    except StopIteration as end:
        outcomes[number] = end.value
        del active[slot]
        return False
    pool.submit(slot, request)
    return True
