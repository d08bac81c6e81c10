"""The native engine on a CPU gives what the model itself gives: tokens and log-probs. `test_engines_reports.py` has what all engines do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from native_models import VARIANTS, WORDS, ask, make, mlp_rows, prompt, worst

from turnwise.engines.base import Finish, Sampling
from turnwise.engines.native import NativeEngine

GREEDY = Sampling(temperature=0.0, max_tokens=20)
LENGTHS = (1, 2, 9, 33, 40, 64, 97, 120)


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_those_of_generate_and_logprobs_those_of_the_forward(variant: str) -> None:
    model = make(variant)
    prompts = [prompt(n, n) for n in LENGTHS]
    responses = ask(NativeEngine(model, max_batch=5, max_length=160, prefill_tokens=50), prompts, GREEDY)
    for n in (2, 7):
        row = torch.tensor([prompts[n]])
        expected = model.generate(row, attention_mask=torch.ones_like(row), max_new_tokens=20, do_sample=False)[0, len(row[0]) :]
        assert list(responses[n].token_ids) == expected.tolist()
    for n, ids in enumerate(prompts):
        # the most likely token at each place of the response, by the model's own forward
        with torch.no_grad():
            found: list[int] = model(torch.tensor([[*ids, *responses[n].token_ids]])).logits[0, len(ids) - 1 : -1].argmax(-1).tolist()
        assert list(responses[n].token_ids) == found
        assert responses[n].finish is Finish.LENGTH
    assert worst(model, prompts, responses) < 1e-4


def test_the_last_layer_computes_no_more_than_the_draw_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(num_hidden_layers=3)
    engine = NativeEngine(model, max_length=160, prefill_tokens=64)
    rows, prompts = mlp_rows(engine, monkeypatch), [prompt(100, 1), prompt(20, 2)]
    found = ask(engine, prompts, Sampling(max_tokens=3))
    assert rows == [[64, 56, 2, 2], [64, 56, 2, 2], [2, 2, 2]]  # the first step reads the beginning of a prompt and draws nothing
    assert worst(model, prompts, found) < 1e-4


def test_sampled_logprobs_are_at_the_requests_temperature_and_before_truncation() -> None:
    model = make()
    prompts = [prompt(n, n) for n in LENGTHS]
    for sampling in (Sampling(temperature=0.7, max_tokens=12), Sampling(temperature=1.6, top_p=0.8, top_k=20, min_p=0.01, max_tokens=12)):
        responses = ask(NativeEngine(model, max_length=160), prompts, sampling)
        assert worst(model, prompts, responses, sampling.temperature) < 1e-4


def test_the_models_own_end_tokens_stop_a_response() -> None:
    free = ask(NativeEngine(make(), max_length=160), [prompt(20)], GREEDY)[0].token_ids
    model = make()
    model.generation_config.eos_token_id = [free[3], WORDS - 1]
    engine = NativeEngine(model, max_length=160)
    assert engine.stop_token_ids == {free[3], WORDS - 1}
    assert ask(engine, [prompt(20)], GREEDY)[0].token_ids == free[: free.index(free[3]) + 1]


def test_the_model_can_still_be_saved_copied_and_trained(tmp_path: Any) -> None:
    model = make("llama with biases")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    NativeEngine(model, max_length=64)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    for name, value in copy.deepcopy(model).state_dict().items():
        assert torch.equal(value, before[name]) and torch.equal(again.state_dict()[name], value)
    model(torch.tensor([prompt(9)]), labels=torch.tensor([prompt(9)])).loss.backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
