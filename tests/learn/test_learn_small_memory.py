"""An optimiser that takes less memory: moments in 8 bits, and moments and masters in host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_cases import credited, equal, tiny, trajectories, weights_of
from torch import nn

from turnwise.learn import chunked_adam
from turnwise.learn.checkpoint import latest_good, save
from turnwise.learn.learner import Learner
from turnwise.learn.optimiser import Optimiser
from turnwise.learn.sections import OptimiserSettings, ValueSettings
from turnwise.learn.settings import LearnerSettings
from turnwise.learn.weights import Weights
from turnwise.objectives import Loss
from turnwise.recipe.schema import Config
from turnwise.setup.build import learner_settings
from turnwise.util.errors import TurnwiseError


def draw(seed: int = 0, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def settings(dtype: str = "float32", value: bool = False, **optimiser: Any) -> LearnerSettings:
    own = OptimiserSettings(**{"lr": 1e-2, "clip": 0.5, "warmup": 2, **optimiser})
    critic = ValueSettings() if value else None
    return LearnerSettings(loss=Loss(kl_coef=0.0), optimiser=own, dtype=dtype, minibatches=2, value=critic)  # type: ignore[arg-type]


def stored(values: torch.Tensor, signed: bool, seed: int = 0) -> torch.Tensor:
    """Numbers after they were packed and unpacked."""
    codes = torch.empty(values.shape, dtype=torch.uint8)
    scales = torch.empty(len(values), chunked_adam.blocks_of(values))
    chunked_adam.pack_moment(values, codes, scales, signed, generator(seed))
    return chunked_adam.unpack_moment(codes, scales, signed)


# -- 8 bits -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [128, 300])
def test_a_packed_number_is_within_a_code_of_what_it_was_and_keeps_its_sign(size: int) -> None:
    values = draw(0, 5, size)
    found = stored(values, True)
    assert torch.equal(found.sign(), values.sign())
    assert ((found / values) - 1).abs().max() < 2 ** (1 / chunked_adam.STEPS) - 1 + 1e-6
    assert torch.equal(found.abs().amax(), values.abs().amax())


def test_packing_is_right_on_average() -> None:
    values = draw(1, 1, 256)
    mean = torch.stack([stored(values, True, seed) for seed in range(200)]).double().mean(0)
    assert ((mean - values) / values).abs().max() < 0.03  # a single one is off by up to 0.09


def test_a_second_moment_that_is_not_zero_never_becomes_zero() -> None:
    values = torch.tensor([[1.0, 1e-30, 0.0] + [1e-12] * 125])
    found = stored(values, False)
    assert (found[0] > 0).tolist() == (values[0] > 0).tolist()


def quadratic(optimiser: dict[str, Any], steps: int = 60, host: bool = False) -> tuple[torch.Tensor, torch.Tensor, Optimiser]:
    """A noisy quadratic whose gradients differ by a factor of a hundred from weight to weight: the path of the weights, and the best."""
    weight, best = nn.Parameter(draw(0, 16, 256)), draw(1, 16, 256)
    slope = 10 ** (2 * torch.rand(16, 256, generator=generator(2)) - 1)
    weights = Weights({"weight": weight}.items(), host=host)
    own = Optimiser(weights, OptimiserSettings(lr=2e-2, weight_decay=0.0, clip=None, **optimiser))
    path = []
    for step in range(steps):
        weights.put_gradient("weight", slope * (weight.detach() - best + draw(step + 3, 16, 256)))
        own.step(0.0)
        path.append(weight.detach().clone())
    return torch.stack(path), best, own


def test_8_bit_moments_stay_close_to_a_float64_adamw_and_reach_the_same_place() -> None:
    path, best, _ = quadratic({"moments": "8bit"})
    weight = nn.Parameter(draw(0, 16, 256).double())
    slope = (10 ** (2 * torch.rand(16, 256, generator=generator(2)) - 1)).double()
    adam = torch.optim.AdamW([weight], lr=2e-2, weight_decay=0.0)
    for step in range(60):
        weight.grad = slope * (weight.detach() - best + draw(step + 3, 16, 256)).double()
        adam.step()
    moved = (weight.detach() - draw(0, 16, 256)).norm()
    assert (path[-1] - weight.detach()).norm() < 0.08 * moved
    near, exact = (path[-1] - best).norm(), (weight.detach() - best).norm()
    assert near < 1.02 * exact


# -- host memory --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["float32", "8bit"])
def test_an_optimiser_in_host_memory_gives_bitwise_the_same_weights(monkeypatch: Any, dtype: str, kind: str) -> None:
    monkeypatch.setattr(chunked_adam, "CHUNK", 1000)  # several chunks per weight
    monkeypatch.setattr(chunked_adam, "FEWEST", 64)
    found, results = credited(trajectories()), []
    for place in ("device", "host"):
        learner = Learner(tiny(), settings(dtype, value=True, moments=kind, optimiser_place=place))
        batch = learner.annotate(found).with_columns({"turn.target": np.ones(len(found.rollouts))})
        metrics = [learner.update(batch, seed) for seed in range(2)]
        results.append((learner, [{k: v for k, v in m.items() if not k.startswith("seconds")} for m in metrics]))
    (one, first), (other, second) = results
    assert first == second and first[0]["grad_norm"] > 0.5  # clipping was at work
    assert equal(weights_of(one), weights_of(other))
    assert equal(dict(one.model.named_parameters()), dict(other.model.named_parameters()))
    assert equal(one.state()[0], other.state()[0])


@pytest.mark.parametrize("kind", ["float32", "8bit"])
def test_a_state_resumes_exactly_and_in_the_other_place_too(monkeypatch: Any, tmp_path: Path, kind: str) -> None:
    monkeypatch.setattr(chunked_adam, "FEWEST", 64)
    found = credited(trajectories())
    learner = Learner(tiny(), settings("bfloat16", moments=kind, optimiser_place="host"))
    learner.update(found, 0)
    tensors, numbers = learner.state()
    save(tmp_path, 1, tensors, {"learner": numbers})
    learner.update(found, 1)
    kept = latest_good(tmp_path)
    assert kept is not None
    for place in ("device", "host"):
        again = Learner(tiny(seed=5), settings("bfloat16", moments=kind, optimiser_place=place))
        again.load_state(kept.tensors, kept.state["learner"])
        again.update(found, 1)
        assert equal(again.state()[0], learner.state()[0])


def test_a_state_of_the_other_kind_of_moments_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(chunked_adam, "FEWEST", 64)
    learners = {kind: Learner(tiny(), settings(moments=kind)) for kind in ("float32", "8bit")}
    for learner in learners.values():
        learner.update(credited(trajectories()), 0)
    with pytest.raises(TurnwiseError, match=r"learner\.moments"):
        learners["float32"].load_state(*learners["8bit"].state())
    with pytest.raises(TurnwiseError, match=r"learner\.moments"):
        learners["8bit"].load_state(*learners["float32"].state())


def test_a_step_that_is_not_finite_leaves_masters_in_host_memory_as_they_are() -> None:
    learner = Learner(tiny(), settings("bfloat16", optimiser_place="host"))
    before = weights_of(learner)
    hook = learner.model.lm_head.weight.register_hook(lambda gradient: gradient * float("inf"))
    assert learner.update(credited(trajectories()), 0)["skipped_steps"] == 2
    hook.remove()
    assert equal(weights_of(learner), before)
    assert not learner.weights.gradients()


def test_a_recipe_sets_them_and_a_cluster_of_learners_refuses_them() -> None:
    words = {"moments": "8bit", "optimiser_place": "host", "reference_place": "auto"}
    recipe = {"learner": words, "model": {"tiny": {"max_length": 4096}}}
    made = learner_settings(Config.load(recipe))
    assert (made.optimiser.moments, made.optimiser.optimiser_place, made.reference_place) == tuple(words.values())
    with pytest.raises(TurnwiseError, match=r"learner\.moments.*learner\.optimiser_place"):
        Config.load(recipe | {"cluster": {"learners": 2}})
