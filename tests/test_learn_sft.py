"""The supervised warm start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from learn_cases import plain_logprobs, tiny, trajectories

from turnwise.errors import TurnwiseError
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, SftSettings, as_trajectories, pack, warm_start
from turnwise.objectives import Loss
from turnwise.rollouts import Trajectory, Turn

FAST = SftSettings(epochs=12, batch_tokens=60, optimiser=OptimiserSettings(lr=5e-3))


def test_imitation_lowers_the_loss_on_its_own_data() -> None:
    found = trajectories(1, context="full")
    learner = Learner(tiny())
    before = -learner.logprobs(pack(found)).mean()
    metrics = warm_start(learner, found, FAST)
    after = -learner.logprobs(pack(found)).mean()
    assert after < 0.5 * before
    assert metrics["loss_last"] < 0.6 * metrics["loss_first"] and metrics["epochs"] == 12 and metrics["steps"] > 12


def test_the_loss_is_the_mean_of_the_response_tokens() -> None:
    pairs = [([1, 2, 3], [4, 5]), ([6], [7, 8, 9])]
    model = tiny()
    with torch.no_grad():
        wanted = -torch.cat([plain_logprobs(model, prompt, response) for prompt, response in pairs]).mean().item()
    learner = Learner(model, LearnerSettings(tokens_per_batch=5, temperature=0.3))  # parts, and a sampler's temperature that is not used
    metrics = warm_start(learner, as_trajectories(pairs), SftSettings(batch_tokens=100, optimiser=OptimiserSettings(lr=0.0)))
    assert metrics["loss"] == pytest.approx(wanted, rel=1e-5) and metrics["steps"] == 1 and metrics["tokens"] == 5


def test_steps_bound_the_training_and_the_seed_decides_it() -> None:
    def trained(seed: int) -> tuple[float, torch.Tensor]:
        learner = Learner(tiny())
        metrics = warm_start(learner, trajectories(2), SftSettings(steps=7, batch_tokens=40, optimiser=OptimiserSettings(lr=1e-3)), seed)
        return metrics["steps"], learner.model.lm_head.weight.detach().clone()

    (steps, one), (_, same), (_, other) = trained(1), trained(1), trained(2)
    assert steps == 7 and torch.equal(one, same) and not torch.equal(one, other)


def test_imitation_stops_when_it_is_told_that_this_is_enough() -> None:
    answers = iter([False, False, True])
    settings = replace(FAST, look_every=4)
    learner, whole = Learner(tiny()), Learner(tiny())
    assert warm_start(learner, trajectories(2), settings, enough=lambda: next(answers))["steps"] == 12
    assert warm_start(whole, trajectories(2), replace(settings, epochs=1), enough=lambda: False)["steps"] > 0
    same = Learner(tiny())
    asked: list[int] = []
    warm_start(same, trajectories(2), settings, enough=lambda: bool(asked.append(1)) or len(asked) == 3)
    assert torch.equal(same.model.lm_head.weight, learner.model.lm_head.weight)
    with pytest.raises(TurnwiseError, match="look_every"):
        replace(FAST, look_every=0)


def test_what_follows_starts_with_a_fresh_optimiser_and_the_learnt_masters() -> None:
    learner = Learner(tiny(), LearnerSettings(loss=Loss(kl_coef=0.1), dtype="bfloat16"))
    found = trajectories(3)
    before = learner.reference_logprobs(pack(found))
    warm_start(learner, found, replace(FAST, epochs=2))
    assert not learner.optimiser.state()[0] and learner.optimiser.steps_taken == 0
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(parameter, learner.weights.masters[name].bfloat16())
    assert np.array_equal(before, learner.reference_logprobs(pack(found)))
    learner.reset_reference()
    assert np.allclose(learner.reference_logprobs(pack(found)), learner.logprobs(pack(found)), atol=1e-5)


def test_pairs_become_trajectories_of_one_turn() -> None:
    (only,) = as_trajectories([([1, 2], [3])])
    assert only.turns[0].prompt_ids == (1, 2) and only.turns[0].response_ids == (3,)


def test_nothing_to_imitate_is_refused() -> None:
    with pytest.raises(TurnwiseError, match="no response token"):
        warm_start(Learner(tiny()), [Trajectory(0, 0, turns=[Turn(anchor="x", prompt_ids=[1])])])
    with pytest.raises(TurnwiseError, match="at least 1"):
        SftSettings(epochs=0)
