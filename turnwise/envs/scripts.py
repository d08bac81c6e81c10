"""Many small plays through one pool, each written as if it were alone.

A play is a generator: it yields a request (`Reset(task, seed)`, an action, `Snapshot()`, `Restore(task, seed, state)`), gets the
`EnvResult`, and returns what it found. `play_all` lets as many of them run side by side as the pool has slots and hands their findings
out in the order of the plays. So what is played before training (the words of the tiny model, a warm start's examples, a smoke test of
the environment) obeys workers, time limits, memory limits and signals like the training itself, and is the same for any number of
workers.

`arrive` brings an environment to a turn of an earlier attempt: from a snapshot if there is one, otherwise by replaying its actions. A
branch must start from the state that its parent had at that turn; otherwise it would be compared with unrelated turns. The anchors show
whether it does: they are compared where the branch begins and, during a replay, before every turn. A failed branch reports the turn and
both anchors. The caller drops and counts it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from turnwise.data.anchors import digest
from turnwise.data.tasks import Task
from turnwise.envs.pool import Ask, EnvResult, Pool, Reset, Restore, Snapshot
from turnwise.util.errors import TurnwiseError
from turnwise.util.printable import printable

__all__ = ["Arrived", "Limits", "Play", "Reset", "Restore", "Snapshot", "arrive", "play_all", "short"]

ASK_SECONDS = 0.5  # how often it is asked whether to stop, while all wait for an environment
SLOTS_PER_WORKER = 2
SHOWN = 40  # characters of a text anchor in a message

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


class Arrived(NamedTuple):
    """The outcome. `ok`: the environment is in the state where the branch begins, and `result` has the observation there. Otherwise
    `message` says in one line at which turn the states differ, and `result` is the last one."""

    result: EnvResult
    ok: bool
    message: str = ""


def arrive(task: Task, seed: int, actions: Sequence[str], anchors: Sequence[Any], snapshot: bytes | None = None) -> Play[Arrived]:
    """Bring an environment to the turn after `actions` of an earlier attempt at the task with this seed.

    `anchors` are the keys of that attempt's observations: one before each action, and the one where the branch begins. A `snapshot` taken
    there is restored instead of playing `actions`."""
    if len(anchors) != len(actions) + 1:
        raise TurnwiseError(
            f"task {task.id!r}: a branch after {len(actions)} actions needs {len(actions) + 1} anchors (one before each action, and "
            f"the one where it begins), got {len(anchors)}"
        )
    if snapshot is not None:
        result = yield Restore(task, seed, snapshot)
        return _compare(result, len(actions), anchors[-1]) or Arrived(result, True)
    result = yield Reset(task, seed)
    for turn, anchor in enumerate(anchors):
        if astray := _compare(result, turn, anchor):
            return astray
        if turn < len(actions):
            result = yield actions[turn]
    return Arrived(result, True)


def short(anchor: Any) -> str:
    """A short form of an anchor: the first digits of its hash, and for a text its beginning."""
    mark = digest(anchor).hex()[:8]
    if not isinstance(anchor, str):
        return mark
    words = printable(" ".join(anchor[: 4 * SHOWN].split()))
    return f"{mark} ({words[:SHOWN]!r}{'…' if len(words) > SHOWN or len(anchor) > 4 * SHOWN else ''})"


def _compare(result: EnvResult, turn: int, anchor: Any) -> Arrived | None:
    """What is wrong with the state before a turn; None if it is the recorded one."""
    if result.fault is not None:
        return Arrived(result, False, f"turn {turn}: {result.stop_reason}")
    reached = result.observation.key
    if digest(reached) != digest(anchor):
        return Arrived(result, False, f"turn {turn}: the anchor is {short(reached)}, and was {short(anchor)}")
    if result.over:
        return Arrived(result, False, f"turn {turn}: the attempt has ended here, at anchor {short(reached)}, and had gone on")
    return None
