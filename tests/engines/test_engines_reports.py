"""What all engines do alike: reports about tokens, the weights that sampled them, seeds, stops, refusals and faults."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from native_doubles import paged_engine
from native_models import ask, drain, make, plain_logprobs, prompt, worst
from test_engines_sampling import byte_tokenizer

from turnwise import TurnwiseError
from turnwise.engines.base import Finish, Request, Response, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.reports import report_columns, report_of
from turnwise.engines.transformers import TransformersEngine

ALL = ("entropy", "top_logprobs:3", "top_tokens:2")
Make = Callable[..., Any]


@pytest.fixture(params=["native", "native as on a GPU", "transformers"])
def make_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    kinds = {"native": NativeEngine, "transformers": TransformersEngine, "native as on a GPU": partial(paged_engine, monkeypatch)}
    return lambda model, **options: kinds[request.param](model, **{"max_batch": 8, "max_length": 96, **options})


def distributions(model: Any, ids: list[int], response: Response, temperature: float) -> torch.Tensor:
    """The log-probs before each sampled token, by the model's own forward in float64."""
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        logits = exact(torch.tensor([[*ids, *response.token_ids]])).logits[0, len(ids) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.7, 5), (0.0, 0)])
def test_reports_are_those_of_the_models_own_distribution_before_any_cut(make_engine: Make, temperature: float, top_k: int) -> None:
    model = make()
    prompts = [prompt(5), prompt(40, 1), prompt(17, 2)]
    found = ask(make_engine(model), prompts, Sampling(temperature=temperature, top_k=top_k, max_tokens=6, report=ALL))
    for number, ids in enumerate(prompts):
        reports = found[number].reports
        logprobs = distributions(model, ids, found[number], temperature or 1.0)
        top = logprobs.topk(3)
        assert tuple(reports) == report_columns(ALL)
        assert reports["entropy"] == pytest.approx((-(logprobs.exp() * logprobs).sum(-1)).tolist(), abs=1e-4)
        for place in range(3):
            assert reports[f"top_logprob_{place + 1}"] == pytest.approx(top.values[:, place].tolist(), abs=1e-4)
        assert reports["top_token_1"] == tuple(top.indices[:, 0].tolist())


def test_a_report_changes_no_token_and_rows_get_what_they_asked_for(make_engine: Make) -> None:
    model, prompts = make(), [prompt(9, n) for n in range(4)]
    plain = ask(make_engine(model), prompts, Sampling(max_tokens=5))
    engine = make_engine(model)
    asked = [(), ("entropy",), ("top_logprobs:1",), ("entropy",)]
    engine.submit([Request(n, ids, Sampling(max_tokens=5, report=asked[n]), n, sequence=n) for n, ids in enumerate(prompts)])
    for n, response in drain(engine).items():
        assert response.token_ids == plain[n].token_ids and plain[n].reports == {}
        assert response.logprobs == pytest.approx(
            plain[n].logprobs, rel=1e-6
        )  # rows that report are computed together: sums in another order
        assert tuple(response.reports) == report_columns(asked[n])
        assert all(len(values) == 5 for values in response.reports.values())


def test_a_published_version_is_on_every_response_drawn_from_then_on(make_engine: Make) -> None:
    model, other = make(), make(seed=1)
    engine = make_engine(copy.deepcopy(model))
    before = ask(engine, [prompt(12)], Sampling(temperature=0.0, max_tokens=6))[0]
    assert (engine.version, before.version) == (0, 0)
    engine.publish(3, other.state_dict())
    after = ask(engine, [prompt(12)], Sampling(temperature=0.0, max_tokens=6))[0]
    expected = ask(make_engine(other), [prompt(12)], Sampling(temperature=0.0, max_tokens=6))[0]
    assert (engine.version, after.version) == (3, 3)
    assert after.token_ids == expected.token_ids != before.token_ids
    assert after.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_a_response_in_the_middle_of_a_publication_has_the_version_of_its_first_token(make_engine: Make) -> None:
    engine = make_engine(make())
    engine.submit([Request(0, prompt(8), Sampling(max_tokens=8))])
    for _ in range(3):
        assert engine.poll(wait=False) == []
    engine.submit([Request(1, prompt(8, 1), Sampling(max_tokens=2), sequence=1)])
    engine.publish(1)
    found: dict[int, Response] = {}
    while engine.pending:
        found |= {response.key: response for response in engine.poll(wait=False)}
    assert (found[0].version, found[1].version) == (0, 1) and len(found[0].token_ids) == 8


def test_published_weights_that_do_not_fit_change_nothing(make_engine: Make) -> None:
    model = make()
    engine, before = make_engine(model), {name: value.clone() for name, value in model.state_dict().items()}
    wrong = {name: torch.zeros(3) if "norm" in name else torch.zeros_like(value) for name, value in before.items()}
    for weights, says in ((wrong, "shape"), ({**before, "extra": torch.zeros(1)}, "extra"), (dict(list(before.items())[1:]), "missing")):
        with pytest.raises(TurnwiseError, match=says):
            engine.publish(1, weights)
    assert engine.version == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# -- what all engines do with a response --------------------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_tokens_whatever_else_is_in_the_batch(make_engine: Make) -> None:
    model, sampling = make(), Sampling(top_p=0.95, max_tokens=12)
    prompts = [prompt(n, n) for n in (1, 2, 9, 33, 40, 64)]
    together = ask(make_engine(model), prompts, sampling, seed=5)
    for n, ids in enumerate(prompts):
        alone = ask(make_engine(model, max_batch=1, prefill_tokens=7), [ids], sampling, seed=5 + n)[0]
        assert alone.token_ids == together[n].token_ids
        assert alone.logprobs == pytest.approx(together[n].logprobs, abs=1e-5)
    other = ask(make_engine(model), prompts, sampling, seed=500)
    assert all(other[n].token_ids != together[n].token_ids for n in together)


def test_stop_strings_and_end_tokens_end_a_response_and_are_part_of_it(make_engine: Make) -> None:
    model, tokenizer = make(vocab_size=256), byte_tokenizer()
    free = Sampling(max_tokens=40)
    whole = ask(make_engine(model, tokenizer=tokenizer, stop_token_ids=[]), [[65, 66]], free, seed=3)[0].token_ids
    text = tokenizer.decode(whole[10:12])
    cut = next(n for n in range(1, 41) if text in tokenizer.decode(whole[:n]))
    sampling = replace(free, stop=("never", text))
    stopped = ask(make_engine(model, tokenizer=tokenizer, stop_token_ids=[]), [[65, 66]], sampling, seed=3)[0]
    assert (stopped.finish, stopped.token_ids) == (Finish.STOP, whole[:cut])
    ender = make_engine(model, stop_token_ids=[whole[7]])
    ended = ask(ender, [[65, 66]], free, seed=3)[0]
    assert (ended.finish, ended.token_ids) == (Finish.STOP, whole[: whole.index(whole[7]) + 1])
    with pytest.raises(TurnwiseError, match="need a tokenizer"):
        ender.submit([Request(1, [65], Sampling(stop=("x",)))])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(list(range(6, 36)), "30 tokens.*may have 30"), ([], "empty"), ([5, 97], "knows 0 to 96"), ([-1], "from -1")],
)
def test_a_prompt_that_cannot_be_answered_is_refused_alone(make_engine: Make, wrong: list[int], words: str) -> None:
    engine = make_engine(make(), max_length=30, stop_token_ids=[])
    found = ask(engine, [[7] * 29, wrong, [9]], Sampling(max_tokens=3))
    assert found[1].finish is Finish.REFUSED and re.search(words, found[1].message)
    assert found[0].finish is found[2].finish is Finish.LENGTH
    assert (len(found[0].token_ids), len(found[2].token_ids)) == (1, 3)


def test_one_rows_fault_says_what_it_is_and_does_not_reach_the_rows_after_it(make_engine: Make) -> None:
    model = make()
    engine, embeddings, prompts = make_engine(model, max_batch=1), model.model.embed_tokens.weight, [[*[3] * 50, 7], [2] * 9]
    row = embeddings[7].detach().clone()
    with torch.no_grad():
        embeddings[7] = torch.nan
    engine.refresh()
    found = ask(engine, prompts, Sampling(temperature=0.0, max_tokens=6))
    assert [found[0].finish, found[1].finish] == [Finish.FAULT, Finish.LENGTH] and "not numbers" in found[0].message
    with torch.no_grad():
        embeddings[7] = row
    engine.refresh()
    assert worst(model, prompts, ask(engine, prompts, Sampling(temperature=0.0, max_tokens=6))) < 1e-4


def test_new_weights_are_used_at_once_also_in_the_middle_of_a_response(make_engine: Make) -> None:
    model, old, other = make(), make(), make(seed=1)
    engine = make_engine(model, stop_token_ids=[])
    engine.submit([Request(0, prompt(30), Sampling(max_tokens=20), seed=1), Request(1, prompt(9, 1), Sampling(max_tokens=3), sequence=1)])
    assert [response.key for response in engine.poll()] == [1]
    model.load_state_dict(other.state_dict())
    engine.refresh()
    response = drain(engine)[0]
    gaps = [abs(plain_logprobs(one, prompt(30), response.token_ids) - torch.tensor(response.logprobs)) for one in (old, other)]
    drawn = next(place for place, gap in enumerate(gaps[1]) if gap < 1e-3)
    assert len(response.token_ids) == 20 and drawn >= 3 and max(gaps[0][:3]) < 1e-4 and max(gaps[1][drawn + 1 :]) < 1e-3


# -- what may be asked for -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("report", [("entropie",), ("entropy:3",), ("top_logprobs",), ("top_logprobs:0",), "entropy", ("top_tokens:1000",)])
def test_a_report_that_is_none_is_an_error_that_says_what_can_be_asked_for(report: Any) -> None:
    with pytest.raises(TurnwiseError, match="report"):
        Sampling(report=report)


def test_a_columns_report_is_found_by_its_name() -> None:
    assert report_of("entropy") == "entropy" and report_of("logprob") is None and report_of("top_logprob_0") is None
    for column in report_columns(ALL):
        assert column in report_columns((report_of(column) or "",))
