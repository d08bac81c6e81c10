"""The native engine's GPU runner on a CPU, with plain torch in place of its kernels: small pages that rows share and copy, steps launched
before the last one is seen, steps that are padded to a captured size and sent in one copy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from native_doubles import Everything, paged_engine
from native_models import FAMILIES, ask, drain, make, mlp_rows, prompt, worst
from native_requests import random_requests_are_right

from turnwise.engines.base import Request, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.native import memory as engine_memory
from turnwise.engines.native.prompt_sizes import PromptSize, capture_bytes, prompt_size
from turnwise.engines.native.requests import RunningRequest, Step
from turnwise.engines.native.weights import Weights
from turnwise.engines.registry import checked
from turnwise.kernels import product_table
from turnwise.kernels.product_table import Blocks, blocks_of
from turnwise.util.errors import TurnwiseError

GREEDY = Sampling(temperature=0.0, max_tokens=6)
Make = Callable[..., NativeEngine]


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes engines with so many pages of so many tokens."""
    return partial(paged_engine, monkeypatch)


@pytest.mark.parametrize(("pages", "size", "requests", "kind"), [(12, 64, 100, "model"), (40, 16, 60, "model"), (40, 16, 60, "8bit")])
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


@pytest.mark.parametrize(("hopper", "softcap", "ways"), [
    (False, None, ("draw_tiles", "draw_nucleus")), (True, None, ("draw_product", "draw_truncated")),
    (True, 30.0, ("draw_tiles", "draw_nucleus")),
])  # fmt: skip
def test_tokens_are_sampled_in_the_way_that_the_gpu_the_model_and_the_settings_allow(
    paged: Make, monkeypatch: pytest.MonkeyPatch, hopper: bool, softcap: float | None, ways: tuple[str, str]
) -> None:
    """A model whose logits are capped is left to the kernels that read logits."""
    engine = paged(make(num_hidden_layers=1), 40, 16, max_length=128)
    if softcap is not None:
        object.__setattr__(engine._runner.weights.shape, "softcap", softcap)  # type: ignore[attr-defined]
    monkeypatch.setattr("turnwise.kernels.hopper.tiles.fits", lambda x, weight: True)
    engine._runner._products._hopper = hopper  # type: ignore[attr-defined]
    module, drawn = sys.modules["turnwise.engines.native.gpu_runner"], list[str]()
    monkeypatch.setattr(module, "FEW_ROWS", 0)
    for name in ("draw_product", "draw_tiles", "draw_truncated", "draw_nucleus"):
        own = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, name=name, own=own, **more: (drawn.append(name), own(*given, **more)))
    for top_p in (1.0, 0.9):
        ask(engine, [prompt(5, 1)], Sampling(max_tokens=3, top_p=top_p))
    assert drawn == [ways[0]] * 3 + [ways[1]] * 3


@pytest.mark.parametrize("variant", ["qwen2", "llama with biases"])
def test_tokens_are_those_of_the_cpu_runner(paged: Make, variant: str) -> None:
    model = make(variant)
    prompts = [prompt(n, n) for n in (1, 5, 40, 64, 65, 90)]
    samplings = [Sampling(max_tokens=7), Sampling(temperature=0.0, max_tokens=7), Sampling(temperature=0.8, top_p=0.9, max_tokens=7)]
    requests = [Request(n, ids, samplings[n % 3], seed=n - 3, sequence=n) for n, ids in enumerate(prompts)]
    answers = []
    for engine in (NativeEngine(model, max_length=128), paged(model, 40, 16, max_length=128)):
        engine.submit(requests)
        answers.append({n: r.token_ids for n, r in drain(engine).items()})
    assert answers[0] == answers[1] and len(answers[0]) == 6


@pytest.mark.parametrize("variant", ["qwen2", "llama with biases", "gemma3", "qwen3-moe"])
def test_products_in_parts_change_no_token(paged: Make, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    split = Blocks(16, 16, 16, split=3)
    monkeypatch.setattr(product_table, "MEASURED", Everything(qkv=split, out=split, down=split))
    model, prompts = make(variant), [prompt(n, n) for n in (5, 40, 64)]
    engine = paged(model, 40, 16, max_length=128)
    for turn in range(2):
        found = ask(engine, prompts, Sampling(max_tokens=6), seed=turn)
        assert worst(model, prompts, found) < 1e-4


def test_a_product_is_the_librarys_unless_its_shape_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    few, more = Blocks(16, 64, 64), Blocks(64, 64, 64)
    monkeypatch.setattr(product_table, "MEASURED", {("out", 64, 32): ((16, few), (128, more))})
    assert [blocks_of("out", rows, 64, 32) for rows in (1, 16, 17, 100, 129)] == [few, few, more, more, None]
    assert blocks_of("down", 1, 64, 32) is None and blocks_of("out", 1, 32, 64) is None


def test_a_replayed_step_does_what_a_new_one_does_with_what_the_host_has_sent_since(paged: Make) -> None:
    """A graph is the work of its first step, done again: nothing in it may belong to that step alone."""
    engine = paged(make(), 60, 16, max_batch=4, max_length=160)
    first: dict[Any, Callable[[], None]] = {}
    replays: list[str] = []

    def replay(key: Any, work: Callable[[], None]) -> None:
        replays.extend([key[0]] if key in first else [])
        first.setdefault(key, work)()

    engine._runner._replay = replay  # type: ignore[attr-defined]
    for turn in range(4):  # longer and shorter prompts of the same size, more and fewer rows
        prompts = [prompt(20 + 11 * n - 2 * turn, 10 * turn + n) for n in range(4 - turn % 2)]
        assert worst(make(), prompts, ask(engine, prompts, Sampling(max_tokens=5), seed=turn)) < 1e-4
        for n in range(4):
            engine.release(n)
    assert min(replays.count(kind) for kind in ("prompt", "sample", "decode")) >= 2


@pytest.mark.parametrize("captured", [True, False])
def test_the_last_layer_computes_no_more_than_sampling_needs(paged: Make, captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(num_hidden_layers=3)
    engine = paged(model, 60, 16, max_batch=4, max_length=160, prefill_tokens=64)
    if not captured:
        engine._runner._sizes = ()  # type: ignore[attr-defined]
    rows = mlp_rows(engine, monkeypatch)
    prompts = [prompt(100, 1), prompt(20, 2)]
    found = ask(engine, prompts, Sampling(max_tokens=1))
    assert worst(model, prompts, found) < 1e-4
    padded = PromptSize(64, 64, 4, 16).rows
    assert rows == [[64, 64], [64, 64], [padded, padded]] if captured else [[64, 56], [64, 56], [2]]


def test_a_step_with_reports_and_one_too_large_to_capture_run_as_they_come(paged: Make) -> None:
    model = make()
    engine = paged(model, 60, 16, max_batch=4, max_length=160)
    engine._runner._sizes = (32,)  # type: ignore[attr-defined]
    prompts = [prompt(n, n) for n in (20, 50, 90)]
    plain = ask(engine, prompts, Sampling(max_tokens=6))
    assert worst(model, prompts, plain) < 1e-4
    engine.forget()
    reported = ask(engine, prompts, Sampling(max_tokens=6, report=("entropy",)))
    assert {n: r.token_ids for n, r in reported.items()} == {n: r.token_ids for n, r in plain.items()}
    assert all(len(r.reports["entropy"]) == 6 for r in reported.values())


def step_of(counts: list[int]) -> Step:
    step = Step()
    for slot, count in enumerate(counts):
        row = RunningRequest(Request(slot, [1] * count, Sampling()), [1] * count, 500, None, slot=slot)
        step.add(row, count, draws=slot != 1)
    return step


def test_padding_fills_a_size_exactly_and_covers_every_token_once() -> None:
    step = step_of([70, 3, 40])
    size = prompt_size((64, 128, 256), step, slots=8, most=16)
    assert size == PromptSize(128, 64, 8, 16)
    ends = np.array(step.counts).cumsum()
    whole = np.arange(113)
    step.rows[2].computed = 5
    tokens, positions, slots, blocks, last, last_blocks = size.pad(whole, whole % 70, whole * 0, ends, step, spare=8)
    assert tuple(map(len, (tokens, positions, slots, blocks, last, last_blocks))) == size.pieces
    covered = np.concatenate([np.arange(start, start + count) for _, start, _, count in blocks.reshape(-1, 4)])
    assert sorted(covered.tolist()) == list(range(128))
    assert (slots[113:] == 8).all() and positions[113:].max() < 16
    assert last[:2].tolist() == [69, 112]
    assert last_blocks.reshape(-1, 4)[:2].tolist() == [[0, 0, 69, 1], [2, 1, 44, 1]]
    assert last_blocks.reshape(-1, 4)[2:].tolist() == [[8, n, 0, 1] for n in range(2, size.rows)]


def test_many_short_rows_take_a_larger_size_and_too_many_tokens_none() -> None:
    assert prompt_size((32, 64, 128), step_of([2] * 9), 32, 64) == PromptSize(128, 16, 32, 16)
    assert prompt_size((32, 64, 128), step_of([100, 29]), 32, 64) is None


def test_memory_of_captured_steps_is_left_out_of_the_caches_part(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Weights(make())
    assert capture_bytes(weights, 8) > 4096 * 4 * 3 * weights.shape.middle
    monkeypatch.setattr(engine_memory, "free_bytes", lambda device: 1000)
    gpu = torch.device("cuda")
    assert engine_memory._bytes(0.5, gpu) == 500 and engine_memory._bytes(0.5, gpu, 200) == 400
    assert engine_memory._bytes(777, gpu, 200) == 777  # bytes are what was asked for


def test_a_recipe_with_the_former_switches_is_told_what_is_left() -> None:
    with pytest.raises(TurnwiseError, match=r"no option 'switches' any more: .*engine.options.graphs"):
        checked("native", {"switches": {"overlap": False}})
