"""Optimiser and reference in host memory, with streams and pinned memory. Needs a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learn_cases import equal, tiny, trajectories
from torch import nn

from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, chunked_adam, pack
from turnwise.learn.optimiser import Optimiser
from turnwise.learn.weights import Weights
from turnwise.objectives import Loss

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def stepped(place: str, steps: int = 4) -> tuple[Weights, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Masters, parameters and state after a few steps on given gradients."""
    random = torch.Generator("cuda").manual_seed(0)
    shapes = {"wide": (700, 1000), "norm": (1000,), "small": (8, 8)}
    parameters = {name: nn.Parameter(torch.randn(shape, generator=random, device="cuda")) for name, shape in shapes.items()}
    weights = Weights(parameters.items(), torch.bfloat16, {"small"}, host=place == "host")
    own = Optimiser(weights, OptimiserSettings(lr=1e-3, clip=0.5))
    for _ in range(steps):
        for name, parameter in parameters.items():
            weights.put_gradient(name, torch.randn(parameter.shape, generator=random, device="cuda"))
        own.step(0.0)
    state = {name: tensor.cpu() for name, tensor in own.state()[0].items()}
    return weights, {name: parameter.detach().cpu() for name, parameter in parameters.items()}, state


def test_a_step_from_host_memory_is_bitwise_that_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_adam, "CHUNK", 20_000)  # many chunks: both buffers are used again and again
    (here, one, first), (there, other, second) = (stepped(place) for place in ("device", "host"))
    assert equal(one, other) and equal(first, second)
    assert there.masters["wide"].is_pinned() and here.masters["wide"].is_cuda
    assert torch.equal(here.masters["wide"].cpu(), there.masters["wide"])


@pytest.mark.parametrize("half", [False, True])
def test_a_reference_from_host_memory_has_bitwise_the_same_logprobs_and_leaves_nothing_behind(half: bool) -> None:
    packed, found, held = pack(trajectories(0, groups=8, size=8, context="full")), [], []
    for place in ("device", "host"):
        model = tiny(num_hidden_layers=7, hidden_size=256, intermediate_size=512).cuda()
        settings = LearnerSettings(loss=Loss(kl_coef=0.1), dtype="bfloat16" if half else "float32", reference_place=place)  # type: ignore[arg-type]
        learner = Learner(model, settings)
        learner.reference_logprobs(packed)
        before = torch.cuda.memory_allocated()
        found.append([learner.reference_logprobs(packed) for _ in range(3)])
        held.append(torch.cuda.memory_allocated() - before)
        if place == "host":
            assert learner.reference is not None and not any(tensor.is_cuda for tensor in learner.reference.tensors().values())
    assert all(np.array_equal(own, found[0][0]) for several in found for own in several)
    assert held == [0, 0]
