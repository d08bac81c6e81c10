"""Optimiser and reference in host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_cases import credited, equal, tiny, trajectories, weights_of
from native_models import make

from turnwise.learn import chunked_adam
from turnwise.learn.auxiliary.scorer import Reference
from turnwise.learn.checkpoint import latest_good, save
from turnwise.learn.forward import PackedModel
from turnwise.learn.learner import Learner
from turnwise.learn.packing import Packed, pack
from turnwise.learn.sections import OptimiserSettings, ValueSettings
from turnwise.learn.settings import LearnerSettings
from turnwise.objectives import Loss
from turnwise.recipe.schema import Config
from turnwise.setup.build import learner_settings
from turnwise.util.errors import TurnwiseError

# -- the optimiser ------------------------------------------------------------------------------------------------------------------


def settings(dtype: str = "float32", value: bool = False, place: str = "host") -> LearnerSettings:
    own = OptimiserSettings(lr=1e-2, clip=0.5, warmup=2, optimiser_place=place)  # type: ignore[arg-type]
    critic = ValueSettings() if value else None
    return LearnerSettings(loss=Loss(kl_coef=0.0), optimiser=own, dtype=dtype, minibatches=2, value=critic)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_optimiser_in_host_memory_gives_bitwise_the_same_weights(monkeypatch: Any, dtype: str) -> None:
    monkeypatch.setattr(chunked_adam, "CHUNK", 1000)  # several chunks per weight
    found, results = credited(trajectories()), []
    for place in ("device", "host"):
        learner = Learner(tiny(), settings(dtype, value=True, place=place))
        batch = learner.annotate(found).with_columns({"turn.target": np.ones(len(found.rollouts))})
        metrics = [learner.update(batch, seed) for seed in range(2)]
        results.append((learner, [{k: v for k, v in m.items() if not k.startswith("seconds")} for m in metrics]))
    (one, first), (other, second) = results
    assert first == second and first[0]["grad_norm"] > 0.5  # clipping was at work
    assert equal(weights_of(one), weights_of(other))
    assert equal(dict(one.model.named_parameters()), dict(other.model.named_parameters()))
    assert equal(one.state()[0], other.state()[0])


def test_a_state_resumes_exactly_and_in_the_other_place_too(tmp_path: Path) -> None:
    found = credited(trajectories())
    learner = Learner(tiny(), settings("bfloat16"))
    learner.update(found, 0)
    tensors, numbers = learner.state()
    save(tmp_path, 1, tensors, {"learner": numbers})
    learner.update(found, 1)
    kept = latest_good(tmp_path)
    assert kept is not None
    for place in ("device", "host"):
        again = Learner(tiny(seed=5), settings("bfloat16", place=place))
        again.load_state(kept.tensors, kept.state["learner"])
        again.update(found, 1)
        assert equal(again.state()[0], learner.state()[0])


def test_a_step_that_is_not_finite_leaves_masters_in_host_memory_as_they_are() -> None:
    learner = Learner(tiny(), settings("bfloat16"))
    before = weights_of(learner)
    hook = learner.model.lm_head.weight.register_hook(lambda gradient: gradient * float("inf"))
    assert learner.update(credited(trajectories()), 0)["skipped_steps"] == 2
    hook.remove()
    assert equal(weights_of(learner), before)
    assert not learner.weights.gradients()


def test_a_recipe_sets_the_places_and_a_cluster_of_learners_refuses_them() -> None:
    words = {"optimiser_place": "host", "reference_place": "auto"}
    recipe = {"learner": words, "model": {"tiny": {"max_length": 4096}}}
    made = learner_settings(Config.load(recipe))
    assert (made.optimiser.optimiser_place, made.reference_place) == tuple(words.values())
    with pytest.raises(TurnwiseError, match=r"learner\.optimiser_place"):
        Config.load(recipe | {"cluster": {"learners": 2}})


# -- the reference ------------------------------------------------------------------------------------------------------------------


def learner_with(place: str, seed: int = 0, reference: Any = None, **more: Any) -> Learner:
    """A learner with a KL reference in this place."""
    own = LearnerSettings(
        loss=Loss(kl_coef=0.1),
        optimiser=OptimiserSettings(lr=1e-2),
        reference_place=place,  # type: ignore[arg-type]
        **more,
    )
    return Learner(tiny(seed), own, reference=reference)


def hidden(policy: PackedModel, packed: Packed) -> torch.Tensor:
    with torch.no_grad(), policy.attention():
        return policy.hidden(packed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_updates_are_bitwise_those_with_the_reference_on_the_device(dtype: str) -> None:
    found, packed = credited(trajectories()), pack(trajectories())
    learners = [learner_with(place, dtype=dtype, tokens_per_batch=40) for place in ("device", "host", "auto")]
    for learner in learners:
        learner.update(found, 0)
    scores = [learner.reference_logprobs(packed) for learner in learners]
    assert all(np.array_equal(own, scores[0]) for own in scores)
    assert not np.array_equal(scores[0], learners[0].logprobs(packed))
    assert all(equal(learner.state()[0], learners[0].state()[0]) for learner in learners)


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3-moe", "gemma3", "smollm3"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_reference_in_host_memory_computes_what_the_model_does(kind: str, fused: bool) -> None:
    packed = pack(trajectories(context="full"))
    model = tiny(kind=kind, tie_word_embeddings=kind == "llama") if kind in ("qwen2", "llama") else make(kind)
    policy = PackedModel(model, fused=fused)
    wanted, reference = hidden(policy, packed), Reference(policy, host=True)
    outside = [weight.data_ptr() for weight in reference.policy.causal.parameters()]
    for _ in range(2):
        with reference.active():
            assert torch.equal(hidden(reference.policy, packed), wanted)
            assert not set(outside) & {weight.data_ptr() for weight in reference.policy.causal.parameters()}
        assert outside == [weight.data_ptr() for weight in reference.policy.causal.parameters()]


def test_a_reference_in_host_memory_is_kept_resumed_and_reset() -> None:
    found, packed = credited(trajectories()), pack(trajectories())
    learner = learner_with("host")
    learner.update(found, 0)
    wanted = learner.reference_logprobs(packed)
    for place in ("device", "host"):
        again = learner_with(place, seed=9)
        again.load_state(*learner.state())
        assert np.array_equal(again.reference_logprobs(packed), wanted)
    learner.reset_reference()
    assert np.array_equal(learner.reference_logprobs(packed), learner.logprobs(packed))


def test_a_custom_reference_and_a_further_one_can_be_in_host_memory() -> None:
    packed, learner = pack(trajectories()), learner_with("host")
    own, plain = (learner_with(place, reference=tiny(1)) for place in ("host", "device"))
    assert np.array_equal(own.reference_logprobs(packed), plain.reference_logprobs(packed))
    made_later = learner.make_reference()
    with made_later.active():
        assert torch.equal(hidden(made_later.policy, packed), hidden(learner.policy, packed))
