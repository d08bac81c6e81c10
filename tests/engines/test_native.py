"""The native engine on a CPU gives what the model itself gives: tokens, log-probs, stops, seeds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from native_models import VARIANTS, WORDS, ask, drain, make, mlp_rows, plain_logprobs, prompt, worst

from turnwise.engines.base import Finish, Request, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.util.errors import TurnwiseError

GREEDY = Sampling(temperature=0.0, max_tokens=20)
LENGTHS = (1, 2, 9, 33, 40, 64, 97, 120)


class Letters:
    """A tokenizer of a kind: token n is the letter number n, so that a stop string spans tokens."""

    eos_token_id = None

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None) -> str:
        return "".join(chr(0x100 + n) for n in ids)


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


def test_the_same_seed_draws_the_same_tokens_whatever_else_is_in_the_batch() -> None:
    model, sampling = make(), Sampling(temperature=1.0, top_p=0.95, max_tokens=15)
    prompts = [prompt(n, n) for n in LENGTHS]
    together = ask(NativeEngine(model, max_length=160), prompts, sampling, seed=5)
    for n, ids in enumerate(prompts):
        engine = NativeEngine(model, max_batch=1, max_length=160, prefill_tokens=7)
        engine.submit([Request(n, ids, sampling, 5 + n)])
        alone = drain(engine)[n]
        assert alone.token_ids == together[n].token_ids
        assert alone.logprobs == pytest.approx(together[n].logprobs, abs=1e-5)
    other = ask(NativeEngine(model, max_length=160), prompts, sampling, seed=500)
    assert sum(other[n].token_ids != together[n].token_ids for n in together) == len(prompts)


def test_a_response_ends_with_its_stop_token_or_stop_string() -> None:
    model = make()
    ids = prompt(20)
    free = ask(NativeEngine(model, max_length=160), [ids], GREEDY)[0].token_ids
    place = next(i for i in range(2, 20) if free[i] not in free[:i])
    by_token = ask(NativeEngine(model, max_length=160, stop_token_ids=[free[place]]), [ids], GREEDY)[0]
    assert (by_token.token_ids, by_token.finish) == (free[: place + 1], Finish.STOP)
    text = "".join(chr(0x100 + n) for n in free[place - 1 : place + 1])
    engine = NativeEngine(model, Letters(), max_length=160)
    by_string = ask(engine, [ids], replace(GREEDY, stop=("nowhere", text)))[0]
    assert (by_string.token_ids, by_string.finish) == (free[: place + 1], Finish.STOP)
    with pytest.raises(TurnwiseError, match="tokenizer"):
        NativeEngine(model).submit([Request(0, ids, replace(GREEDY, stop=("x",)))])


def test_the_models_own_end_tokens_stop_a_response() -> None:
    free = ask(NativeEngine(make(), max_length=160), [prompt(20)], GREEDY)[0].token_ids
    model = make()
    model.generation_config.eos_token_id = [free[3], WORDS - 1]
    engine = NativeEngine(model, max_length=160)
    assert engine.stop_token_ids == {free[3], WORDS - 1}
    assert ask(engine, [prompt(20)], GREEDY)[0].token_ids == free[: free.index(free[3]) + 1]


def test_what_cannot_fit_is_refused_alone_and_the_rest_goes_on() -> None:
    engine = NativeEngine(make(), max_length=64)
    prompts = [prompt(10), prompt(64), [], [5, WORDS], prompt(63)]
    responses = ask(engine, prompts, GREEDY)
    assert [responses[n].finish for n in range(5)] == [Finish.LENGTH, Finish.REFUSED, Finish.REFUSED, Finish.REFUSED, Finish.LENGTH]
    assert "64 tokens" in responses[1].message and "max_length" in responses[1].message
    assert "empty" in responses[2].message and str(WORDS) in responses[3].message
    assert len(responses[0].token_ids) == 20 and len(responses[4].token_ids) == 1


def test_rows_in_the_middle_of_a_response_go_on_with_the_new_weights_after_refresh() -> None:
    model, ids = make(), prompt(30)
    engine = NativeEngine(model, max_length=160)
    engine.submit([Request(0, ids, GREEDY, sequence=0), Request(1, prompt(9, 1), replace(GREEDY, max_tokens=3), sequence=1)])
    assert [r.key for r in engine.poll()] == [1]
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(-1.0)
    engine.refresh()
    response = drain(engine)[0]
    new = plain_logprobs(model, ids, response.token_ids)[3:]
    assert new.tolist() == pytest.approx(response.logprobs[3:], abs=1e-4)
    assert len(response.token_ids) == 20


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
