"""Two threads make the attention calls of a tiny model on a CPU: every bit as if one had made them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from native_models import ask, drain, make, one_thread_each, prompt

from turnwise.engines.base import Response, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.kernels import attend_cpu

__all__ = ["one_thread_each"]  # a fixture
pytestmark = pytest.mark.usefixtures("one_thread_each")
SAMPLING = Sampling(temperature=1.0, max_tokens=12)
PROMPTS = [prompt(n, n) for n in (1, 2, 9, 33, 40, 64, 97, 120)]


def engine_with(threads: int, monkeypatch: pytest.MonkeyPatch, model: Any, **options: Any) -> NativeEngine:
    monkeypatch.setattr("turnwise.engines.native.cpu_runner.at_once", lambda used: threads)
    return NativeEngine(model, max_length=160, prefill_tokens=90, **options)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads of all calls."""
    used, call = list[int](), attend_cpu.scaled_dot_product_attention

    def own(*given: Any, **named: Any) -> Any:
        used.append(threading.get_ident())
        assert not torch.is_grad_enabled()
        return call(*given, **named)

    monkeypatch.setattr(attend_cpu, "scaled_dot_product_attention", own)
    return used


@pytest.mark.parametrize("apart", [10**6, -(10**6)])  # rows share a call, or have one each
@pytest.mark.parametrize("variant", ["llama", "gemma3"])
@pytest.mark.parametrize("cache", ["model", "8bit"])
def test_two_threads_draw_what_one_draws_bit_by_bit(monkeypatch: pytest.MonkeyPatch, apart: int, variant: str, cache: str) -> None:
    model, used = make(variant), noted(monkeypatch)
    monkeypatch.setattr(attend_cpu, "CALL", apart)
    found: list[dict[int, Response]] = []
    for threads, worth in ((1, -(10**9)), (2, -(10**9)), (2, 10**9)):
        monkeypatch.setattr(attend_cpu, "WORTH", worth)
        engine = engine_with(threads, monkeypatch, model, cache_dtype=cache)
        used.clear()
        found.append(ask(engine, PROMPTS, SAMPLING, seed=3))
        assert len(set(used)) == (2 if threads == 2 and worth < 0 else 1) and threading.get_ident() in used
    one, *others = [[(response.token_ids, response.logprobs) for response in own.values()] for own in found]
    assert all(own == one for own in others)


@pytest.mark.parametrize("second", [True, False])
def test_an_error_in_a_thread_is_raised_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch, second: bool) -> None:
    model, call, own = make(), attend_cpu.scaled_dot_product_attention, threading.get_ident()
    monkeypatch.setattr(attend_cpu, "WORTH", 0)
    wanted = ask(engine_with(1, monkeypatch, model), PROMPTS, SAMPLING, seed=3)
    engine = engine_with(2, monkeypatch, model)

    def fails(*given: Any, **named: Any) -> Any:
        if (threading.get_ident() != own) is second:
            raise ZeroDivisionError("a call")
        return call(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(attend_cpu, "scaled_dot_product_attention", fails)
        with pytest.raises(ZeroDivisionError, match="a call"):
            ask(engine, PROMPTS, SAMPLING, seed=3)
    found = drain(engine)
    assert found.keys() == wanted.keys() and all(found[n].token_ids == wanted[n].token_ids for n in found)


def test_both_halves_are_over_when_one_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing reads the cache any more when an error is told."""
    monkeypatch.setattr(attend_cpu, "WORTH", 0)
    begun, over, calls = threading.Event(), threading.Event(), attend_cpu.Calls(2)

    def slow() -> torch.Tensor:
        begun.set()
        threading.Event().wait(0.05)
        over.set()
        return torch.zeros(1)

    def fails() -> torch.Tensor:
        assert begun.wait(10)
        raise ZeroDivisionError("a call")

    with pytest.raises(ZeroDivisionError, match="a call"):
        calls._made([(1, fails), (1, slow)])
    assert over.is_set()
