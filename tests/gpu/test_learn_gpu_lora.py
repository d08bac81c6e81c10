"""LoRA adapters in the fused layers on a GPU, also on weights of 4 bits. Needs a GPU; some need bitsandbytes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from fused_cases import adapted
from learn_cases import credited, trajectories
from native_models import ask
from test_learn_gpu import distance, gradient, model

from turnwise.engines.base import Sampling
from turnwise.engines.native import NativeEngine
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, pack
from turnwise.learn.activations import Kept
from turnwise.learn.forward import PackedModel
from turnwise.learn.lora import pack_base
from turnwise.objectives import Loss

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
needs_library = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes (extra 4bit)")


def with_adapters(dtype: torch.dtype, packed: bool = False) -> Any:
    base = model("qwen2", dtype)
    return adapted(pack_base(base, "cuda", dtype) if packed else base, rank=8)


def slopes(policy: PackedModel, packed: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """As `gradient`: of the adapters alone."""
    hidden, found = gradient(policy, packed)
    assert found and all("lora_" in name for name in found)
    return hidden, found


@pytest.mark.parametrize("kept", [Kept(), Kept(0, 0)])
def test_adapters_in_bfloat16_are_near_to_those_of_peft_in_float32(kept: Kept) -> None:
    packed = pack(trajectories(3, groups=4, size=4, context="full"))
    exact, fused = PackedModel(with_adapters(torch.float32), fused=False), PackedModel(with_adapters(torch.bfloat16))
    assert fused.fused is not None
    fused.fused.kept = kept
    (wanted, exact_slopes), (found, found_slopes) = slopes(exact, packed), slopes(fused, packed)
    assert (found - wanted).norm() < 0.03 * wanted.norm()
    assert distance(found_slopes, exact_slopes) < 0.1


@needs_library
def test_adapters_on_weights_of_four_bits_are_near_to_those_of_peft() -> None:
    packed = pack(trajectories(3, groups=4, size=4, context="full"))
    plain, fused = PackedModel(with_adapters(torch.bfloat16, True), fused=False), PackedModel(with_adapters(torch.bfloat16, True))
    assert fused.fused is not None
    (wanted, plain_slopes), (found, found_slopes) = slopes(plain, packed), slopes(fused, packed)
    assert (found - wanted).norm() < 0.03 * wanted.norm()
    assert distance(found_slopes, plain_slopes) < 0.15


@needs_library
@pytest.mark.parametrize("graphs", [False, True])
def test_engine_and_learner_have_the_same_policy_on_weights_of_four_bits(graphs: bool) -> None:
    settings = LearnerSettings(loss=Loss(kl_coef=0.01), dtype="bfloat16", optimiser=OptimiserSettings(lr=0.01))
    learner = Learner(with_adapters(torch.bfloat16, True), settings, "cuda")
    assert learner.policy.fused is not None
    engine = NativeEngine(learner.model, max_batch=8, max_length=200, cache_memory=1e8, graphs=graphs)
    prompts = [[number % 40 + 1 for number in range(length)] for length in (3, 17, 40, 64)]
    for version in range(3):  # steps are recorded when a size comes for the second time
        responses = ask(engine, prompts, Sampling(max_tokens=12))
        rows = [[*prompt, *responses[number].token_ids] for number, prompt in enumerate(prompts)]
        wanted = logprobs(learner, prompts, rows)
        assert max(np.abs(wanted[n] - np.array(responses[n].logprobs)).mean() for n in range(len(prompts))) < 0.05
        learner.update(credited(trajectories()), version)
        engine.publish(version)


def logprobs(learner: Learner, prompts: list[list[int]], rows: list[list[int]]) -> list[Any]:
    """The log-probs of what follows each prompt, by the model's own forward."""
    found = []
    for prompt, row in zip(prompts, rows, strict=True):
        with torch.no_grad():
            logits = learner.model(torch.tensor([row], device="cuda")).logits[0].float().log_softmax(-1)
        places = torch.arange(len(prompt) - 1, len(row) - 1, device="cuda")
        found.append(logits[places, torch.tensor(row[len(prompt) :], device="cuda")].cpu().numpy())
    return found
