"""Decisions of the learner: every process comes to the same one, and one process alone to its own."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from learn_cases import credited, tiny, trajectories

from turnwise.learn import Learner, LearnerSettings, OptimiserSettings
from turnwise.learn.ranks.group import Alone, Decisions
from turnwise.util.errors import TurnwiseError


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


class Elsewhere(Alone):
    """Another process beside this one, which runs out of memory at the attempts that are named, and has little room."""

    def __init__(self, fails: set[int], room: float = float("inf")):
        self.fails, self.room, self.asked = fails, room, 0

    def any(self, flag: bool) -> bool:
        self.asked += 1
        return flag or self.asked in self.fails

    def smallest(self, number: float) -> float:
        return min(number, self.room)


def test_a_learner_tries_again_when_another_process_ran_out_of_memory() -> None:
    batch = credited(trajectories(8, context="full"))
    settings = LearnerSettings(optimiser=OptimiserSettings(lr=1e-2), tokens_per_batch=200)
    alone, together = Learner(tiny(), settings), Learner(tiny(), settings, decisions=Decisions(Elsewhere({1})))
    alone.update(batch)
    with pytest.warns(UserWarning, match="out of memory with 200 tokens"):
        together.update(batch)
    assert together.budget.tokens == 100
    for name, tensor in alone.weights.tensors().items():
        torch.testing.assert_close(together.weights.tensors()[name], tensor, rtol=1e-3, atol=1e-4)
    hopeless = Learner(tiny(), settings, decisions=Decisions(Elsewhere({1, 2})))
    with pytest.warns(UserWarning, match="out of memory"), pytest.raises(TurnwiseError, match="on another rank"):
        hopeless.update(batch)


def test_a_learner_computes_no_more_tokens_at_once_than_every_process_has_room_for() -> None:
    learner = Learner(tiny(), LearnerSettings(), decisions=Decisions(Elsewhere(set(), room=77)))
    assert learner.budget.tokens == 77


def test_a_step_is_skipped_when_another_process_has_no_finite_loss() -> None:
    learner = Learner(tiny(), LearnerSettings(), decisions=Decisions(Elsewhere({2})))  # 1: memory, 2: the step
    assert learner.update(credited(trajectories(8)))["skipped_steps"] == 1


def test_an_update_stops_when_the_other_processes_have_moved_too_far() -> None:
    class Far(Alone):
        def total(self, number: float) -> float:
            return number + 1e6  # of the other one: as many tokens, each with a KL of 1

    for together, steps in ((Decisions(), 1), (Decisions(Far()), 0)):
        learner = Learner(tiny(), LearnerSettings(kl_stop=0.5), decisions=together)
        learner.update(credited(trajectories(8)))
        assert learner.optimiser.steps_taken == steps
