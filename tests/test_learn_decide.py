"""Decisions of the learner: every process comes to the same one, and one process alone to its own."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from learn_cases import credited, tiny, trajectories

from turnwise.learn.decide import Alone, Decisions
from turnwise.learn.learner import Learner
from turnwise.learn.settings import LearnerSettings


class Together:
    """Processes as threads: each gives its word and hears everybody's."""

    def __init__(self, size: int):
        self.words: list[Any] = [None] * size
        self.barrier = Barrier(size, timeout=20)

    def seat(self, rank: int) -> _Seat:
        return _Seat(self, rank)


class _Seat:
    def __init__(self, room: Together, rank: int):
        self.room, self.rank = room, rank

    def _share(self, word: Any, combine: Callable[[Any], Any]) -> Any:
        self.room.words[self.rank] = word
        self.room.barrier.wait()
        found = combine(list(self.room.words))
        self.room.barrier.wait()
        return found

    def any(self, flag: bool) -> bool:
        return bool(self._share(flag, any))

    def smallest(self, number: float) -> float:
        return float(self._share(number, min))

    def total(self, number: float) -> float:
        return float(self._share(number, sum))


def everybody(ask: Callable[[Decisions, int], Any], size: int = 3) -> list[Any]:
    room, found = Together(size), [None] * size

    def work(rank: int) -> None:
        found[rank] = ask(Decisions(room.seat(rank)), rank)

    threads = [Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_if_one_runs_out_of_memory_all_try_again_with_the_smallest_batch() -> None:
    assert everybody(lambda d, rank: d.retry(rank == 1)) == [True] * 3
    assert everybody(lambda d, rank: d.retry(False)) == [False] * 3
    assert everybody(lambda d, rank: d.tokens(1000 - 100 * rank)) == [800] * 3


def test_an_update_stops_by_the_kl_of_all_tokens() -> None:
    kls, tokens = [0.9, 0.0, 0.0], [10, 500, 490]  # one process alone would stop
    assert everybody(lambda d, rank: d.stop(kls[rank], 0.1, tokens[rank])) == [False] * 3
    assert everybody(lambda d, rank: d.stop(kls[rank], 0.005, tokens[rank])) == [True] * 3
    assert everybody(lambda d, rank: d.stop(kls[rank], None, tokens[rank])) == [False] * 3


def test_a_loss_that_is_not_finite_anywhere_skips_the_step_everywhere() -> None:
    assert everybody(lambda d, rank: d.skip(float("nan") if rank == 2 else 1.0, 2.0)) == [True] * 3
    assert everybody(lambda d, rank: d.skip(1.0, 2.0)) == [False] * 3


@pytest.mark.parametrize("number", [0.1, 1 / 3, 2.0**-40])
def test_one_process_decides_by_exactly_its_own_numbers(number: float) -> None:
    alone = Decisions()
    assert isinstance(alone.together, Alone)
    assert not alone.stop(number, number, 7) and alone.stop(number, number * (1 - 2**-52), 7)
    assert (alone.retry(True), alone.retry(False), alone.tokens(512)) == (True, False, 512)
    assert alone.skip(1.0, float("inf")) and not alone.skip(1.0, 0.0)


class Other:
    """A second process that has its say in each decision: `any` in turn, and numbers that are added or compared."""

    def __init__(self, flags: list[bool], number: float = 0.0, room: float = 1e9):
        self.flags, self.number, self.room = flags, number, room

    def any(self, flag: bool) -> bool:
        return (self.flags.pop(0) if self.flags else False) or flag

    def smallest(self, number: float) -> float:
        return min(number, self.room)

    def total(self, number: float) -> float:
        return number + self.number


def weights(learner: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.model.parameters()]


def updated(other: Other, **settings: Any) -> tuple[Learner, dict[str, float], bool]:
    """The learner after one update, its metrics, and whether its weights have moved."""
    learner = Learner(tiny(), LearnerSettings(**settings), decide=Decisions(other))
    before = weights(learner)
    metrics = learner.update(credited(trajectories(8)))
    return learner, metrics, not all(torch.equal(old, new) for old, new in zip(before, weights(learner), strict=True))


def test_a_learner_does_what_was_decided_elsewhere() -> None:
    with pytest.warns(UserWarning, match="out of memory with 64 tokens"):
        learner, _, moved = updated(Other([True]), tokens_per_batch=64)  # the other one had no memory
    assert learner.settings.tokens_per_batch == 32 and moved
    learner, _, moved = updated(Other([False, True]), tokens_per_batch=10**6)  # the other one's loss is not a number
    assert not moved and learner.optimiser.bad_in_a_row == 1
    assert updated(Other([]), kl_stop=0.5)[2]
    assert not updated(Other([], number=1e6), kl_stop=0.5)[2]  # the other one has moved far from the old policy
    assert updated(Other([], room=16))[0].settings.tokens_per_batch == 16
