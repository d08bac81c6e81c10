"""Rotary embeddings whose frequencies depend on the length: no sequence may feel how long its neighbours are, or were."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_engines_transformers import chance, play, small_model
from transformers import AutoConfig, AutoModelForCausalLM

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.engines.base import Finish, Request, Sampling
from turnwise.engines.native import supports
from turnwise.engines.transformers import TransformersEngine
from turnwise.learn.forward import PackedModel
from turnwise.learn.logprobs import token_logprobs
from turnwise.learn.packing import pack
from turnwise.util.rotary import Stretching

LIMIT = 16  # tokens up to which the frequencies are the trained ones
WORDS = 97
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": LIMIT}
LONGROPE |= {"short_factor": [1.0] * 4, "long_factor": [1.5, 2.0, 3.0, 4.0]}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
GEMMA = {"full_attention": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}, "sliding_attention": {"rope_theta": 100.0}}
GEMMA["sliding_attention"]["rope_type"] = "default"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3, longrope": (
        "phi3",
        {"max_position_embeddings": 8 * LIMIT, "original_max_position_embeddings": LIMIT, "rope_parameters": LONGROPE},
    ),
    "phimoe, longrope": (
        "phimoe",
        {
            "max_position_embeddings": 8 * LIMIT,
            "rope_parameters": {**LONGROPE, "short_mscale": 1.0, "long_mscale": 1.5},
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
    ),
    "llama, dynamic": ("llama", {"max_position_embeddings": LIMIT, "rope_parameters": DYNAMIC}),
    "gemma3, dynamic in some layers": (
        "gemma3_text",
        {"max_position_embeddings": LIMIT, "rope_parameters": GEMMA, "sliding_window": 64, "layer_types": list(GEMMA)},
    ),
}


def stretching_model(name: str) -> Any:
    kind, changes = KINDS[name]
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **changes))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.15)
    return model.eval()


def own_logprobs(model: Any, ids: list[int]) -> torch.Tensor:
    """Of every token after the first, by transformers' own forward of a model that has met nothing before."""
    with torch.no_grad():
        logits = copy.deepcopy(model)(torch.tensor([ids])).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def sequences(*lengths: int) -> list[list[int]]:
    return [[6 + chance(number, place) % 90 for place in range(length)] for number, length in enumerate(lengths)]


LENGTHS = (LIMIT - 3, 3 * LIMIT, 2 * LIMIT, LIMIT, 5)  # a long one first: what it leaves behind must not count either


@pytest.mark.parametrize("name", KINDS)
def test_the_learner_runs_each_sequence_with_its_own_length(name: str) -> None:
    model, texts = stretching_model(name), sequences(*LENGTHS)
    fresh = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="frequencies depend on the length"):
        policy = PackedModel(model)
    packed = pack([Trajectory(n, n, turns=[Turn(None, prompt_ids=ids[:1], response_ids=ids[1:])]) for n, ids in enumerate(texts)])
    assert not policy.packs and policy.fused is None
    for _ in range(2):
        with torch.no_grad(), policy.attention():
            logprob, _ = token_logprobs(policy.hidden(packed)[packed.source], policy.head, torch.as_tensor(packed.target))
        torch.testing.assert_close(logprob, torch.cat([own_logprobs(fresh, ids) for ids in texts]), rtol=1e-5, atol=1e-5)


def unnamed(frequencies: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dtype: torch.dtype) -> Any:
    """A model whose rotary embedding does not say that it looks at the length."""
    torch.manual_seed(0)
    model = small_model("qwen2", max_position_embeddings=4096)
    rotary = model.model.rotary_emb
    plain = rotary.inv_freq.clone()

    def look(module: Any, args: Any, kwargs: Any) -> None:
        module.inv_freq = frequencies(plain, kwargs["position_ids"] if "position_ids" in kwargs else args[1])

    rotary.register_forward_pre_hook(look, with_kwargs=True)
    return model.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_trial_finds_on_the_model_itself_that_lengths_count(dtype: torch.dtype) -> None:
    stretched = unnamed(lambda plain, position: plain / 2 if position.max() >= 4096 else plain, dtype)
    with pytest.warns(UserWarning, match="one at a time"):
        assert not PackedModel(stretched).packs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PackedModel(unnamed(lambda plain, position: plain / 2, dtype)).packs


@pytest.mark.parametrize("kind", ["qwen2", "mistral", "gemma3_text", "gpt2"])
def test_models_whose_frequencies_are_fixed_are_packed_as_ever(kind: str) -> None:
    model = small_model(kind)
    assert not Stretching(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PackedModel(model, fused=False).packs


@pytest.mark.parametrize("name", KINDS)
def test_what_the_engine_draws_is_what_the_model_says_of_that_row_alone(name: str) -> None:
    """Rows on both sides of the limit and across it, that join, leave, and continue a kept prefix."""
    model = stretching_model(name)
    fresh = copy.deepcopy(model)
    engine = TransformersEngine(model, max_batch=4, max_length=6 * LIMIT, stop_token_ids=())
    prompts = sequences(LIMIT - 2, 2 * LIMIT, 5, LIMIT + 1, 6, 2 * LIMIT + 3)
    asked = {n: Request(n, ids, Sampling(max_tokens=3 + 2 * (n % 3)), seed=chance(n), sequence=n) for n, ids in enumerate(prompts)}
    found = play(engine, asked)
    assert len(found) == 12
    for request, response in found.values():
        assert response.finish is Finish.LENGTH, response.message
        ids = [*request.prompt_ids, *response.token_ids]
        ends = range(len(request.prompt_ids) + 1, len(ids) + 1)
        wanted = torch.stack([_last(fresh, ids[:end]) for end in ends])
        torch.testing.assert_close(torch.tensor(response.logprobs), wanted, rtol=1e-4, atol=1e-4)


def _last(model: Any, ids: list[int]) -> torch.Tensor:
    """The log-prob of the last token, after a forward that has only met those before it."""
    with torch.no_grad():
        logits = copy.deepcopy(model)(torch.tensor([ids[:-1]])).logits[0, -1].float()
    return logits.log_softmax(-1)[ids[-1]]


@pytest.mark.parametrize("name", ["phi3, longrope", "llama, dynamic"])
def test_the_native_engine_leaves_such_models_to_the_other_one(name: str) -> None:
    assert supports(stretching_model(name)) is not None
