"""The native engine on real pretrained chat models, in float32 on a CPU: the tokens of transformers' generate, the log-probs of float64.

The models are looked for in $TURNWISE_MODELS, then in ../shared/models and ~/.cache/turnwise/models, each in a folder of its own name.
"""

from __future__ import annotations

import copy
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from native_models import ask

from turnwise.engines.base import Finish, Response, Sampling
from turnwise.engines.native import NativeEngine, supports

MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")
TOKENS = 72
QUESTIONS = (
    "Name three things that are found in a kitchen and say what each is for.",
    "Write a Python function that reverses a linked list, and explain it.",
    "You are in a room. You see a cabinet 1, a drawer 1 and a desk 1. Your task is to: put a pen in the drawer. What do you do?",
    "Continue the story: The lighthouse keeper had not spoken to anyone for a year when",
    "What is 17 times 23? Think step by step.",
)


def folder_of(name: str) -> Path | None:
    """Where the model is on this machine; None where it is not."""
    given = os.environ.get("TURNWISE_MODELS")
    beside = Path(__file__).parents[2] / "shared" / "models"
    places = [Path(given)] if given else [beside, Path.home() / ".cache" / "turnwise" / "models"]
    return next((place / name for place in places if (place / name / "config.json").is_file()), None)


@cache
def loaded(name: str) -> tuple[Any, Any]:
    folder = folder_of(name)
    if folder is None:
        pytest.skip(f"the model {name} is not here: put its folder under $TURNWISE_MODELS or ~/.cache/turnwise/models")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def chats(tokenizer: Any) -> list[list[int]]:
    """Chat prompts of several lengths; the last one is a dialogue of two turns."""
    prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts.append(
        [*prompts[0], {"role": "assistant", "content": "A knife, a pan and a kettle."}, {"role": "user", "content": "And two more?"}]
    )
    return [tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"] for p in prompts]


@cache
def answered(name: str) -> tuple[list[list[int]], dict[int, Response]]:
    """The engine's greedy answers, all prompts in one batch with fewer slots than rows and prompts cut into pieces."""
    model, tokenizer = loaded(name)
    prompts = chats(tokenizer)
    engine = NativeEngine(model, tokenizer, max_batch=5, max_length=512, prefill_tokens=64)
    return prompts, ask(engine, prompts, Sampling(temperature=0.0, max_tokens=TOKENS))


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_of_a_real_model_are_those_of_generate(name: str) -> None:
    model, tokenizer = loaded(name)
    assert supports(model) is None
    prompts, responses = answered(name)
    longest = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id or 0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    with torch.no_grad():
        expected = model.generate(ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False)[:, longest:].tolist()
    for n, row in enumerate(expected):
        length = len(responses[n].token_ids)
        assert list(responses[n].token_ids) == row[:length], f"prompt {n}: {tokenizer.decode(row)!r}"
        if responses[n].finish is Finish.STOP:
            assert responses[n].token_ids[-1] in model.generation_config.eos_token_id
        else:
            assert length == TOKENS


@pytest.mark.parametrize("name", MODELS)
def test_logprobs_of_a_real_model_are_those_of_a_float64_forward(name: str) -> None:
    model, _ = loaded(name)
    prompts, responses = answered(name)
    exact = copy.deepcopy(model).double()
    worst = 0.0
    for n in (0, 5):
        row = torch.tensor([[*prompts[n], *responses[n].token_ids]])
        with torch.no_grad():
            logits = exact(row, logits_to_keep=len(responses[n].token_ids) + 1).logits[0, :-1]
        expected = logits.log_softmax(-1).gather(1, row[0, len(prompts[n]) :, None])[:, 0]
        worst = max(worst, (expected - torch.tensor(responses[n].logprobs, dtype=torch.float64)).abs().max().item())
    print(f"{name}: largest difference from float64 {worst:.2e}")
    assert worst < 5e-4
