"""Weights of the vLLM engine that are replaced while responses are under way, on a stand-in for vLLM: nothing is lost or counted twice, and
every token has the version that drew it and the log-prob that it was drawn with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fake_vllm
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from native_models import drain, make
from test_engines_sampling import byte_tokenizer
from test_engines_vllm import PROMPT, Third, changed

from turnwise import TurnwiseError
from turnwise.engines.base import Request, Response, Sampling
from turnwise.engines.vllm import VllmEngine

REPORTED = Sampling(max_tokens=7, report=("top_logprobs:2", "top_tokens:1"))
Make = Callable[..., tuple[VllmEngine, Any]]


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake_vllm.install(monkeypatch)


def engine(model: Any = None, **options: Any) -> tuple[VllmEngine, Any]:
    """An engine on a small model, and the stand-in's engine inside it."""
    more = {"self_check": False, "stop_token_ids": (), "max_batch": 4, "max_length": 22, **options}
    made = VllmEngine(model if model is not None else make("qwen2"), **more)
    return made, fake_vllm.LLMEngine.made[-1]


MODEL = make("qwen2", vocab_size=300)  # bytes: every token is a character
TOKENIZER = byte_tokenizer()
SAMPLINGS = (
    Sampling(temperature=0.0, max_tokens=6),
    Sampling(temperature=0.0, max_tokens=1),
    REPORTED,
    Sampling(temperature=1.3, max_tokens=9, stop=("e", "qz")),
    Sampling(max_tokens=8, rule=Third()),
    Sampling(max_tokens=30),  # more than fit
)


@dataclass
class Play:
    """Requests in the order of their submission, with what happens before each: -1 an update, -2 weights that are read again, other
    numbers that many steps."""

    requests: list[Request]
    before: list[list[int]]


@st.composite
def plays(draw: Any) -> Play:
    count = draw(st.integers(1, 5))
    requests = [
        Request(key, PROMPT[: draw(st.integers(1, 9))], draw(st.sampled_from(SAMPLINGS)), seed=draw(st.integers(0, 2**40)) * 8 + key)
        for key in range(count)
    ]
    return Play(requests, [draw(st.lists(st.sampled_from((-1, -1, -2, 1, 1, 2, 3)), max_size=4)) for _ in range(count + 4)])


def happen(made: VllmEngine, what: int, found: list[Response], publish: Callable[[int], None]) -> None:
    if what == -1:
        publish(made.version + 1)
    elif what == -2:
        made.refresh()
    for _ in range(max(what, 0)):
        found += made.poll(wait=False)


def run(made: VllmEngine, play: Play, publish: Callable[[int], None]) -> dict[int, Response]:
    """All responses by key. Every request is answered exactly once."""
    found: list[Response] = []
    for place, events in enumerate(play.before):
        for what in events:
            happen(made, what, found, publish)
        made.submit(play.requests[place : place + 1])
    rest = drain(made)
    assert sorted([*(response.key for response in found), *rest]) == list(range(len(play.requests)))
    return {response.key: response for response in found} | rest


class Remembers:
    """A model whose weights stay the same, which computes every sequence once."""

    def __init__(self, model: Any):
        self.model, self.known = model, KNOWN

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, input_ids: torch.Tensor) -> Any:
        ids = tuple(input_ids[0].tolist())
        if ids not in self.known:
            self.known[ids] = self.model(input_ids=input_ids)
        return self.known[ids]


KNOWN: dict[tuple[int, ...], Any] = {}


class Plain:
    """What requests get if nothing happens."""

    def __init__(self) -> None:
        self.engine, inner = engine(MODEL, tokenizer=TOKENIZER, stop_token_ids=(11,))
        inner.worker.model = Remembers(inner.worker.model)
        self.known: dict[tuple[Any, ...], Response] = {}

    def answer(self, request: Request) -> Response:
        name = (tuple(request.prompt_ids), request.sampling, request.seed)
        if name not in self.known:
            self.engine.submit([request])
            (self.known[name],) = self.engine.poll()
        return self.known[name]


@pytest.mark.parametrize("ahead", [2, 1], ids=["a step in flight", "no step in flight"])
def test_updates_at_any_moment_change_nothing_if_the_weights_are_the_same(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Plain()
    monkeypatch.setattr(fake_vllm.LLMEngine, "ahead", ahead)
    made, inner = engine(MODEL, tokenizer=TOKENIZER, stop_token_ids=(11,))
    inner.worker.model = Remembers(inner.worker.model)

    @settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.generate))
    @given(plays())
    def check(play: Play) -> None:
        for response in run(made, play, made.publish).values():
            other = plain.answer(play.requests[response.key])
            assert response.token_ids == other.token_ids and response.logprobs == other.logprobs
            assert (response.finish, response.message, response.reports) == (other.finish, other.message, other.reports)
            assert sum(count for _, count in response.spans) == len(response.token_ids)
        assert inner.stale == 0 and not inner.output_processor.request_states and not made.pending

    check()


def test_every_token_has_the_version_that_drew_it_and_its_log_prob_of_that_version() -> None:
    model = make("qwen2, tied", vocab_size=300)
    weights = [changed(model, seed) for seed in range(3)]
    made, inner = engine(model, tokenizer=TOKENIZER, stop_token_ids=(11,))
    loaded: dict[int, int] = {}  # the version of each set of weights that vLLM has loaded

    def publish(version: int) -> None:
        made.publish(version, weights[version % 3])
        loaded[inner.worker.epoch] = version

    publish(0)

    @settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.generate))
    @given(plays())
    def check(play: Play) -> None:
        inner.read.clear()
        for response in run(made, play, publish).values():
            request = play.requests[response.key]
            drew = [version for version, count in response.spans for _ in range(count)]
            places = range(len(request.prompt_ids), len(request.prompt_ids) + len(response.token_ids))
            assert drew == [loaded[inner.read[request.seed, place]] for place in places]
            assert response.version == drew[0] and drew == sorted(drew)
            scores = {version: scored(model, weights[version % 3], request, response) for version in set(drew)}
            assert response.logprobs == pytest.approx([scores[version][place] for place, version in enumerate(drew)], abs=1e-4)

    check()


def scored(model: Any, weights: dict[str, torch.Tensor], request: Request, response: Response) -> list[float]:
    """The log-probs of a response under these weights."""
    prompt = list(request.prompt_ids)
    with torch.no_grad():
        ids = torch.tensor([prompt + list(response.token_ids)])
        logits = torch.func.functional_call(model, weights, (), {"input_ids": ids}, tie_weights=True).logits[0, len(prompt) - 1 : -1]
    scale = request.sampling.temperature or 1.0
    return torch.log_softmax(logits / scale, -1).gather(1, torch.tensor(response.token_ids)[:, None])[:, 0].tolist()


def under_way() -> tuple[VllmEngine, Any, list[Response]]:
    """Three responses of which one has ended and two go on, with a step in flight."""
    made, inner = engine()
    made.submit([Request(key, PROMPT[: 4 + key], Sampling(max_tokens=(2, 9, 9)[key]), seed=key) for key in range(3)])
    for _ in range(3):
        early = made.poll(wait=False)
    assert [response.key for response in early] == [0] and inner.queue
    return made, inner, early


def test_a_pause_reads_the_step_in_flight_before_anything_is_replaced() -> None:
    made, inner, early = under_way()
    before = len(inner.calls)
    made.publish(3)
    order = ["sleep", "start_weight_update", "update_weights", "finish_weight_update", "reset_prefix_cache", "wake_up"]
    assert inner.calls[before:] == order  # nothing is aborted and nothing added
    assert early[0].spans == ((0, 2),)
    assert {key: response.spans for key, response in drain(made).items()} == {1: ((0, 3), (3, 6)), 2: ((0, 3), (3, 6))}
    assert inner.mixed == inner.stale == 0


def fails(*values: Any, **more: Any) -> Any:
    raise RuntimeError("the scheduler is gone")


GONE = "dead and has to be made again.*the scheduler is gone"


@pytest.mark.parametrize(
    ("call", "instead", "words"),
    [("sleep", fails, GONE), ("wake_up", fails, GONE), ("step", fails, GONE), ("step", list, "still has a step in flight")],
)
def test_a_pause_that_fails_or_never_ends_ends_the_engine(call: str, instead: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, inner, _ = under_way()
    monkeypatch.setattr(inner, call, instead)
    with pytest.raises(TurnwiseError, match=words):
        made.publish(1)
    assert made.dead and made.version == 0
