"""The native engine's way with pages, as on a GPU: small ones that rows share and copy, and steps launched before the last one is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from native_doubles import paged_runner
from native_models import FAMILIES, ask, make, prompt, worst
from test_native_cache import random_requests_are_right

import turnwise.engines.native.engine as native_engine
from turnwise.engines.base import Sampling
from turnwise.engines.native import NativeEngine

GREEDY = Sampling(temperature=0.0, max_tokens=6)
Make = Callable[..., NativeEngine]


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes engines with so many pages of so many tokens."""
    cuda = paged_runner(monkeypatch)

    def make_engine(model: Any, pages: int, size: int, **settings: Any) -> NativeEngine:
        monkeypatch.setattr(
            native_engine,
            "make_runner",
            lambda weights, slots, longest, *rest: cuda.CudaRunner(weights, slots, longest, pages, size, False, kind=rest[-1]),
        )
        return NativeEngine(model, **settings)

    return make_engine


@pytest.mark.parametrize(("pages", "size", "requests", "kind"), [(12, 64, 250, "model"), (40, 16, 60, "model"), (40, 16, 60, "8bit")])
def test_random_requests_leak_no_page_and_keep_their_logprobs(paged: Make, pages: int, size: int, requests: int, kind: str) -> None:
    model = make(num_hidden_layers=1)
    settings = {"max_batch": 8, "max_length": 192, "stop_token_ids": [3, 4, 5], "prefill_tokens": 64, "cache_dtype": kind}
    random_requests_are_right(paged(model, pages, size, **settings), model, requests, 1e-4 if kind == "model" else 0.2)


def test_a_copy_of_a_page_that_is_copied_in_the_same_step_is_right(paged: Make) -> None:
    model, engine = make(), paged(make(), 32, 16, max_length=96)
    ask(engine, [prompt(14)], GREEDY)  # later prompts begin with eleven tokens of this one: less than a page
    prompts = [[*prompt(11), *prompt(20, n)] for n in range(1, 4)]
    found = ask(engine, prompts, GREEDY, first=5)
    assert worst(model, prompts, {n: found[5 + n] for n in range(3)}) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_a_groups_common_prompt_and_growing_dialogues_share_pages(paged: Make, family: str) -> None:
    model, engine = make(family), paged(make(family), 80, 16, max_length=160)
    prompts = [prompt(50) for _ in range(4)] + [[*prompt(50), *prompt(7, n)] for n in range(3)]
    for turn in range(3):
        responses = ask(engine, prompts, Sampling(max_tokens=6), seed=turn)
        assert worst(model, prompts, responses) < 1e-4
        assert engine._pages.held < sum(-(-len(ids) // 16) for ids in prompts)
        prompts = [[*ids, *responses[n].token_ids, *prompt(9, 10 * turn + n)] for n, ids in enumerate(prompts)]


def test_copies_that_are_made_at_once_are_taken_from_the_originals(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = paged_runner(monkeypatch)
    assert cuda.originals([(7, 5, 7), (5, 10, 7), (10, 2, 3), (1, 3, 4)]) == [(7, 5), (7, 10), (7, 2), (1, 3)]
