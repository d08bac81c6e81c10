"""Gradients that are added up in float32 where products make them: the same sums as those that autograd's gradients give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from learn_cases import credited, equal, tiny, trajectories, weights_of
from native_models import make

from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, pack
from turnwise.learn.forward import PackedModel
from turnwise.learn.homes import Home, add_product, home_of, joined, settle, weight_slopes

SETTINGS = LearnerSettings(dtype="bfloat16", optimiser=OptimiserSettings(lr=0.05, eps=1.0), minibatches=2, tokens_per_batch=100)


def fused(model: Any, settings: LearnerSettings = SETTINGS) -> Learner:
    learner = Learner(model, settings)
    learner.policy = learner.memory.policy = PackedModel(learner.model, fused=True)
    return learner


def summed(learner: Learner) -> dict[str, torch.Tensor]:
    """What three micro-batches leave."""
    for seed in range(3):
        with learner.training(0):
            logprob, _, _ = learner.forward(learner.policy, pack(trajectories(seed, context="full")), None)
            (logprob * torch.linspace(-1, 2, len(logprob))).sum().backward()
    return learner.weights.gradients()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("host", [False, True])
def test_sums_of_micro_batches_are_those_of_autograd(tied: bool, host: bool) -> None:
    found = []
    for direct in (True, False):
        settings = LearnerSettings(dtype="bfloat16", optimiser=OptimiserSettings(optimiser_place="host" if host else "device"))
        learner = fused(tiny(tie_word_embeddings=tied), settings)
        for parameter in learner.model.parameters():
            assert home_of(parameter) is not None
            if not direct:
                parameter.home = None
        found.append(summed(learner))
        assert all(parameter.grad is None for parameter in learner.model.parameters())
    assert found[0].keys() == found[1].keys() == dict(learner.weights.masters).keys()
    for name, gradient in found[0].items():
        other = found[1][name]
        assert gradient.dtype == other.dtype == torch.float32
        assert (gradient - other).norm() <= 0.01 * other.norm(), name


def test_steps_start_from_sums_of_nothing() -> None:
    """Two steps of several micro-batches each: what a step leaves is not added to the next, and skipped steps leave nothing."""
    batch, moved = credited(trajectories(5, context="full")), []
    for direct in (True, False):
        learner = fused(make("qwen2"))
        for parameter in learner.model.parameters():
            parameter.home = parameter.home if direct else None
        before = weights_of(learner)
        assert learner.update(batch, seed=1)["steps"] == 2 and not learner.weights.gradients()
        moved.append({name: value - before[name] for name, value in weights_of(learner).items()})
    for name, step in moved[0].items():
        assert torch.nn.functional.cosine_similarity(step.flatten(), moved[1][name].flatten(), dim=0) > 0.99, name


def test_weights_in_float32_have_no_home_and_the_same_steps_as_ever() -> None:
    learner = fused(tiny(), LearnerSettings(optimiser=OptimiserSettings(lr=0.05)))
    assert not any(home_of(parameter) for parameter in learner.model.parameters())
    before = weights_of(learner)
    learner.update(credited(trajectories(5)))
    assert not equal(before, weights_of(learner))


def test_neighbours_are_added_to_as_one_and_strangers_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(7, 6, generator=generator), torch.randn(7, 3, generator=generator)
    homes = [Home(torch.zeros(rows, 3)) for rows in (4, 2)]
    add_product(homes, [4, 2], left, right)
    whole = joined([home.sum for home in homes])
    assert whole is not None and whole.shape == (6, 3)
    add_product(homes, [4, 2], left, right)
    torch.testing.assert_close(whole, 2 * left.t() @ right)
    homes[1].put(homes[1].sum.clone())  # type: ignore[union-attr]
    assert joined([home.sum for home in homes]) is None
    add_product(homes, [4, 2], left, right)
    torch.testing.assert_close(torch.cat([home.sum for home in homes]), 3 * left.t() @ right)  # type: ignore[misc]


def test_only_weights_that_are_all_wanted_and_all_have_a_home_are_added_there() -> None:
    left, right = torch.ones(5, 4), torch.ones(5, 2)
    homes = [Home(torch.zeros(2, 2)), Home(torch.zeros(2, 2))]
    assert weight_slopes(left, right, [2, 2], [True, True], homes) == [None, None] and homes[0].sum is not None
    assert weight_slopes(left, right, [2, 2], [False, False], homes) == [None, None]
    for wanted, known in (([True, False], homes), ([True, True], [homes[0], None])):
        found = weight_slopes(left, right, [2, 2], wanted, known)
        assert [own.shape for own in found if own is not None] == [(2, 2)] * 2
    assert float(homes[0].sum.sum()) == 20


def test_a_gradient_that_autograd_left_is_moved_home() -> None:
    weight, master = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)), torch.zeros(3)
    settle(weight, Home(master))
    for _ in range(2):
        (weight * torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)).sum().backward()
        assert weight.grad is None
    assert master.grad is not None and master.grad.tolist() == [2.0, 4.0, 6.0]
