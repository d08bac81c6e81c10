"""A reference whose weights are in host memory and come to the device layer by layer."""

from __future__ import annotations

from threading import get_ident
from typing import Any

import numpy as np
import pytest
import torch
from learn_cases import credited, equal, tiny, trajectories
from native_models import make

from turnwise.learn.auxiliary.scorer import Reference
from turnwise.learn.forward import PackedModel
from turnwise.learn.learner import Learner
from turnwise.learn.offload import OffloadedModel, host_copy_of
from turnwise.learn.packing import Packed, pack
from turnwise.learn.parallel import workers_for
from turnwise.learn.sections import OptimiserSettings
from turnwise.learn.settings import LearnerSettings
from turnwise.objectives import Loss
from turnwise.util.errors import TurnwiseError

CPU = torch.device("cpu")


def deep(**more: Any) -> Any:
    """More layers than buffers, an odd number of them."""
    return tiny(**{"num_hidden_layers": 5, **more})


def made(place: str, **more: Any) -> Learner:
    settings = LearnerSettings(
        loss=Loss(kl_coef=0.1),
        optimiser=OptimiserSettings(lr=1e-2),
        reference_place=place,  # type: ignore[arg-type]
        **more,
    )
    return Learner(deep(), settings)


def hidden(policy: PackedModel, packed: Packed) -> torch.Tensor:
    with torch.no_grad(), policy.attention():
        return policy.hidden(packed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_updates_are_bitwise_those_with_the_reference_on_the_device(dtype: str) -> None:
    found, packed = credited(trajectories()), pack(trajectories())
    learners = [made(place, dtype=dtype, tokens_per_batch=40) for place in ("device", "host", "auto")]
    for learner in learners:
        learner.update(found, 0)
    scores = [learner.reference_logprobs(packed) for learner in learners]
    assert all(np.array_equal(own, scores[0]) for own in scores)
    assert not np.array_equal(scores[0], learners[0].logprobs(packed))
    assert all(equal(learner.state()[0], learners[0].state()[0]) for learner in learners)


def test_layers_that_take_turns_in_a_place_are_computed_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.learn.parallel.at_once", lambda used: 2)
    packed, seen = pack(trajectories()), set()
    host, device = (made(place, tokens_per_batch=40) for place in ("host", "device"))
    fetch = host.reference.policy.causal.fetch_layer  # type: ignore[union-attr]

    def watched(number: int) -> None:
        seen.add(get_ident())
        fetch(number)

    host.reference.policy.causal.fetch_layer = watched  # type: ignore[union-attr]
    assert np.array_equal(host.reference_logprobs(packed), device.reference_logprobs(packed))
    assert seen == {get_ident()} and workers_for(device.reference.policy, None) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3-moe", "gemma3", "smollm3"])
@pytest.mark.parametrize("fused", [False, True])
def test_offloaded_layers_compute_what_resident_ones_do(kind: str, fused: bool) -> None:
    packed = pack(trajectories(context="full"))
    model = deep(kind=kind, tie_word_embeddings=kind == "llama") if kind in ("qwen2", "llama") else make(kind)
    wanted = hidden(PackedModel(model, fused=fused), packed)
    copied = host_copy_of(model)
    offloaded = OffloadedModel(copied, CPU, torch.float32)
    with offloaded.active():
        policy = PackedModel(copied, fused=fused)
    for _ in range(2):
        with offloaded.active():
            assert torch.equal(hidden(policy, packed), wanted)
            if policy.fused is not None:
                policy.fused.release()


def test_outside_a_pass_all_weights_are_in_host_memory_and_nothing_can_compute() -> None:
    copied = host_copy_of(deep())
    offloaded = OffloadedModel(copied, CPU, torch.float32)
    with offloaded.active():
        policy = PackedModel(copied, fused=False)
        inside = {weight.data_ptr() for weight in copied.model.layers[4].parameters()}
        assert inside == {weight.data_ptr() for weight in copied.model.layers[0].parameters()}  # they share a buffer
    assert all(group.is_in(group.host) for group in (offloaded.root, *offloaded.layers))
    with pytest.raises(TurnwiseError, match=r"active\(\)"):
        hidden(policy, pack(trajectories()))


def test_layers_that_share_weights_come_all_at_once() -> None:
    model = deep()
    model.model.layers[3] = model.model.layers[1]
    wanted = hidden(PackedModel(model, fused=False), pack(trajectories()))
    copied = host_copy_of(model)
    offloaded = OffloadedModel(copied, CPU, torch.float32)
    assert not offloaded.layers
    with offloaded.active():
        assert torch.equal(hidden(PackedModel(copied, fused=False), pack(trajectories())), wanted)


def test_weights_that_something_moves_are_an_error_not_wrong_numbers() -> None:
    copied = host_copy_of(deep())
    offloaded = OffloadedModel(copied, CPU, torch.float32)
    weight = copied.model.layers[2].mlp.up_proj.weight
    with pytest.raises(TurnwiseError, match="reference_place"), offloaded.active():
        weight.data = weight.data.clone()
    assert all(group.is_in(group.host) for group in offloaded.layers)


def test_a_reference_in_host_memory_is_kept_resumed_and_reset() -> None:
    found, packed = credited(trajectories()), pack(trajectories())
    learner = made("host")
    learner.update(found, 0)
    wanted = learner.reference_logprobs(packed)
    for place in ("device", "host"):
        again = Learner(deep(seed=9), made(place).settings)
        again.load_state(*learner.state())
        assert np.array_equal(again.reference_logprobs(packed), wanted)
    learner.reset_reference()
    assert np.array_equal(learner.reference_logprobs(packed), learner.logprobs(packed))


def test_a_custom_reference_and_a_further_one_can_be_in_host_memory() -> None:
    packed, learner = pack(trajectories()), made("host")
    own = Learner(deep(), learner.settings, reference=deep(seed=1))
    plain = Learner(deep(), made("device").settings, reference=deep(seed=1))
    assert np.array_equal(own.reference_logprobs(packed), plain.reference_logprobs(packed))
    made_later = learner.make_reference()
    assert isinstance(made_later, Reference)
    with made_later.active():
        assert torch.equal(hidden(made_later.policy, packed), hidden(learner.policy, packed))
