"""Decisions of the learner: every process comes to the same one, and one process alone to its own."""

from __future__ import annotations

import pytest
import torch
from learn_cases import credited, tiny, trajectories

from turnwise.learn import Learner, LearnerSettings, OptimiserSettings
from turnwise.learn.ranks.group import Decisions, Ranks
from turnwise.util.errors import TurnwiseError


@pytest.mark.parametrize("number", [0.1, 1 / 3, 2.0**-40])
def test_one_process_decides_by_exactly_its_own_numbers(number: float) -> None:
    alone = Decisions()
    assert not alone.stop(number, number, 7) and alone.stop(number, number * (1 - 2**-52), 7)
    assert (alone.retry(True), alone.retry(False), alone.tokens(512)) == (True, False, 512)
    assert alone.skip(1.0, float("inf")) and not alone.skip(1.0, 0.0)


class Elsewhere(Decisions):
    """Another process beside this one, which runs out of memory at the attempts that are named, and has little room."""

    def __init__(self, fails: set[int], room: float = float("inf")):
        super().__init__()
        self.fails, self.room, self.asked = fails, room, 0

    def any(self, flag: bool) -> bool:
        self.asked += 1
        return flag or self.asked in self.fails

    def smallest(self, number: float) -> float:
        return min(number, self.room)


def test_a_learner_tries_again_when_another_process_ran_out_of_memory() -> None:
    batch = credited(trajectories(8, context="full"))
    settings = LearnerSettings(optimiser=OptimiserSettings(lr=1e-2), tokens_per_batch=200)
    alone, together = Learner(tiny(), settings), Learner(tiny(), settings, decisions=Elsewhere({1}))
    alone.update(batch)
    with pytest.warns(UserWarning, match="out of memory with 200 tokens"):
        together.update(batch)
    assert together.budget.tokens == 100
    for name, tensor in alone.weights.tensors().items():
        torch.testing.assert_close(together.weights.tensors()[name], tensor, rtol=1e-3, atol=1e-4)
    hopeless = Learner(tiny(), settings, decisions=Elsewhere({1, 2}))
    with pytest.warns(UserWarning, match="out of memory"), pytest.raises(TurnwiseError, match="on another rank"):
        hopeless.update(batch)


def test_a_learner_computes_no_more_tokens_at_once_than_every_process_has_room_for() -> None:
    learner = Learner(tiny(), LearnerSettings(), decisions=Elsewhere(set(), room=77))
    assert learner.budget.tokens == 77


def test_a_step_is_skipped_when_another_process_has_no_finite_loss() -> None:
    learner = Learner(tiny(), LearnerSettings(), decisions=Elsewhere({2}))  # 1: memory, 2: the step
    assert learner.update(credited(trajectories(8)))["skipped_steps"] == 1


def test_an_update_stops_when_the_other_processes_have_moved_too_far() -> None:
    class Far(Elsewhere):
        def total(self, number: float) -> float:
            return number + 1e6  # of the other one: as many tokens, each with a KL of 1

    far = Far(set())
    far.ranks = Ranks(0, 2)  # not alone, so that sums decide
    for together, steps in ((Decisions(), 1), (far, 0)):
        learner = Learner(tiny(), LearnerSettings(kl_stop=0.5), decisions=together)
        learner.update(credited(trajectories(8)))
        assert learner.optimiser.steps_taken == steps
