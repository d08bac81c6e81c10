"""Gradients that are added up in float32 where products make them: the same sums as those that autograd's gradients give."""

from __future__ import annotations

import pytest
import torch
from learn_cases import tiny, trajectories, with_layers

from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, pack
from turnwise.learn.weights import GradientBuffer, add_product, buffer_of, joined

SETTINGS = LearnerSettings(dtype="bfloat16", optimiser=OptimiserSettings(lr=0.05, eps=1.0), minibatches=2, tokens_per_batch=100)


def summed(learner: Learner) -> dict[str, torch.Tensor]:
    """What three micro-batches leave."""
    for seed in range(3):
        with learner.training(0):
            logprob, _, _ = learner.forward(pack(trajectories(seed, context="full")))
            (logprob * torch.linspace(-1, 2, len(logprob))).sum().backward()
    return learner.weights.gradients()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("host", [False, True])
def test_sums_of_micro_batches_are_those_of_autograd(tied: bool, host: bool) -> None:
    found = []
    for direct in (True, False):
        settings = LearnerSettings(dtype="bfloat16", optimiser=OptimiserSettings(optimiser_place="host" if host else "device"))
        learner = with_layers(Learner(tiny(tie_word_embeddings=tied), settings), fused=True)
        for parameter in learner.model.parameters():
            assert buffer_of(parameter) is not None
            if not direct:
                parameter.gradient_buffer = None
        found.append(summed(learner))
        assert all(parameter.grad is None for parameter in learner.model.parameters())
    assert found[0].keys() == found[1].keys() == dict(learner.weights.masters).keys()
    for name, gradient in found[0].items():
        other = found[1][name]
        assert gradient.dtype == other.dtype == torch.float32
        assert (gradient - other).norm() <= 0.01 * other.norm(), name


def test_neighbours_are_added_to_as_one_and_strangers_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(7, 6, generator=generator), torch.randn(7, 3, generator=generator)
    buffers = [GradientBuffer(torch.zeros(rows, 3)) for rows in (4, 2)]
    add_product(buffers, [4, 2], left, right)
    whole = joined([buffer.sum for buffer in buffers])
    assert whole is not None and whole.shape == (6, 3)
    add_product(buffers, [4, 2], left, right)
    torch.testing.assert_close(whole, 2 * left.t() @ right)
    buffers[1].put(buffers[1].sum.clone())  # type: ignore[union-attr]
    assert joined([buffer.sum for buffer in buffers]) is None
    add_product(buffers, [4, 2], left, right)
    torch.testing.assert_close(torch.cat([buffer.sum for buffer in buffers]), 3 * left.t() @ right)  # type: ignore[misc]
