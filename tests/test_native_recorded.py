"""Steps that are padded to a recorded size and sent in one copy: the same tokens and log-probs as steps that run as they come."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from native_doubles import Everything, paged_runner
from native_models import ask, drain, make, mlp_rows, prompt, worst
from test_native_cache import random_requests_are_right

import turnwise.engines.native.engine as native_engine
from turnwise.engines.base import Request, Sampling
from turnwise.engines.native import NativeEngine, product_table
from turnwise.engines.native import memory as engine_memory
from turnwise.engines.native.product_table import Blocks, blocks_of
from turnwise.engines.native.prompt_sizes import PromptSize, prompt_size, recording_bytes
from turnwise.engines.native.requests import RunningRequest, Step
from turnwise.engines.native.switches import PLAIN, Switches
from turnwise.engines.native.weights import Weights
from turnwise.util.errors import TurnwiseError

Make = Callable[..., NativeEngine]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes engines with so many pages of so many tokens, which work in the ways of their switches."""
    module = paged_runner(monkeypatch, "recorded")

    def make_engine(model: Any, pages: int, size: int, switches: dict[str, Any], **settings: Any) -> NativeEngine:
        monkeypatch.setattr(
            native_engine,
            "make_runner",
            lambda weights, slots, longest, memory, graphs, chosen, kind: module.RecordedRunner(
                weights, slots, longest, pages, size, False, chosen, kind=kind
            ),
        )
        return NativeEngine(model, switches=switches, **settings)

    return make_engine


WAYS = [
    {"record": True, "draw": "rows", "merge": False},
    {"record": False, "draw": "tiles", "merge": False},
    {"record": True, "draw": "fused", "merge": True},
    {"balance": True},
    {"nucleus": False},
]


@pytest.mark.parametrize("switches", WAYS)
@pytest.mark.parametrize(("pages", "size", "requests"), [(12, 64, 30), (40, 16, 30)])
def test_random_requests_keep_their_logprobs_and_leak_no_page(
    recorded: Make, switches: dict[str, Any], pages: int, size: int, requests: int
) -> None:
    model = make(num_hidden_layers=1)
    engine = recorded(model, pages, size, switches, max_batch=8, max_length=192, stop_token_ids=[3, 4, 5], prefill_tokens=64)
    random_requests_are_right(engine, model, requests)


@pytest.mark.parametrize("on", [False, True])
def test_rows_with_top_p_are_drawn_in_tiles_if_that_is_wanted(recorded: Make, monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    model = make(num_hidden_layers=1)
    engine = recorded(model, 40, 16, {"nucleus": on}, max_length=128)
    module, drawn = sys.modules["turnwise.engines.native.recorded"], list[str]()
    for name in ("draw_nucleus", "draw_tokens", "draw_tiles"):
        own = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, name=name, own=own, **more: (drawn.append(name), own(*given, **more)))
    for top_p in (1.0, 0.9):
        ask(engine, [prompt(5, 1)], Sampling(max_tokens=3, top_p=top_p))
    assert drawn == ["draw_tiles"] * 3 + ["draw_nucleus" if on else "draw_tokens"] * 3


@pytest.mark.parametrize(("draw", "hopper", "variant", "ways"), [
    ("auto", True, "qwen2", ("draw_product", "draw_truncated")), ("auto", False, "qwen2", ("draw_tiles", "draw_nucleus")),
    ("tiles", True, "qwen2", ("draw_tiles", "draw_nucleus")), ("auto", True, "gemma2", ("draw_tiles", "draw_nucleus")),
])  # fmt: skip
def test_the_output_layer_draws_by_itself_where_a_gpu_and_a_model_allow_it(
    recorded: Make, monkeypatch: pytest.MonkeyPatch, draw: str, hopper: bool, variant: str, ways: tuple[str, str]
) -> None:
    """A model whose logits are capped is left to the kernels that read logits."""
    model = make(num_hidden_layers=1)
    engine = recorded(model, 40, 16, {"draw": draw}, max_length=128)
    if variant == "gemma2":
        object.__setattr__(engine._runner.weights.shape, "softcap", 30.0)
    monkeypatch.setattr("turnwise.engines.native.hopper_tiles.fits", lambda x, weight: True)
    monkeypatch.setattr("turnwise.engines.native.switches.MEASURED", ((4096, "product"),))
    engine._runner._products._hopper = hopper
    module, drawn = sys.modules["turnwise.engines.native.recorded"], list[str]()
    for name in ("draw_product", "draw_tiles", "draw_truncated", "draw_nucleus"):
        own = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, name=name, own=own, **more: (drawn.append(name), own(*given, **more)))
    for top_p in (1.0, 0.9):
        ask(engine, [prompt(5, 1)], Sampling(max_tokens=3, top_p=top_p))
    assert drawn == [ways[0]] * 3 + [ways[1]] * 3


@pytest.mark.parametrize("variant", ["qwen2", "llama with biases"])
def test_tokens_are_those_of_an_engine_without_switches(recorded: Make, variant: str) -> None:
    model = make(variant)
    prompts = [prompt(n, n) for n in (1, 5, 40, 64, 65, 90)]
    samplings = [Sampling(max_tokens=7), Sampling(temperature=0.0, max_tokens=7), Sampling(temperature=0.8, top_p=0.9, max_tokens=7)]
    requests = [Request(n, ids, samplings[n % 3], seed=n - 3, sequence=n) for n, ids in enumerate(prompts)]
    answers = []
    engines = [NativeEngine(model, max_length=128)]
    engines += [recorded(model, 40, 16, {"record": True, "draw": draw}, max_length=128) for draw in ("rows", "tiles", "fused")]
    for engine in engines:
        engine.submit(requests)
        answers.append({n: r.token_ids for n, r in drain(engine).items()})
    assert all(answer == answers[0] for answer in answers[1:]) and len(answers[0]) == 6


@pytest.mark.parametrize(("variant", "balance"), [("qwen2", True), ("llama with biases", False), ("gemma3", True), ("qwen3-moe", False)])
def test_products_in_parts_and_with_the_activation_inside_change_no_token(
    recorded: Make, variant: str, balance: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, whole = Blocks(16, 16, 16, split=3), Blocks(16, 16, 16)
    monkeypatch.setattr(product_table, "MEASURED", Everything(qkv=split, out=split, gate=whole, down=split))
    model, prompts = make(variant), [prompt(n, n) for n in (5, 40, 64)]
    switches = {"products": True, "gate": True, "overlap": True, "prompts": True, "balance": balance}
    engine = recorded(model, 40, 16, switches, max_length=128)
    for turn in range(2):
        found = ask(engine, prompts, Sampling(max_tokens=6), seed=turn)
        assert worst(model, prompts, found) < 1e-4


def test_a_product_is_the_librarys_unless_its_shape_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    few, more = Blocks(16, 64, 64), Blocks(64, 64, 64)
    monkeypatch.setattr(product_table, "MEASURED", {("out", 64, 32): ((16, few), (48, None), (128, more))})
    assert [blocks_of("out", rows, 64, 32) for rows in (1, 16, 17, 100, 129)] == [few, few, None, more, None]
    assert blocks_of("down", 1, 64, 32) is None and blocks_of("out", 1, 32, 64) is None


def test_a_replayed_step_does_what_a_new_one_does_with_what_the_host_has_sent_since(recorded: Make) -> None:
    """A graph is the work of its first step, done again: nothing in it may belong to that step alone."""
    engine = recorded(make(), 60, 16, {"record": True, "draw": "tiles"}, max_batch=4, max_length=160)
    first: dict[Any, Callable[[], None]] = {}
    replays: list[str] = []

    def replay(key: Any, work: Callable[[], None]) -> None:
        replays.extend([key[0]] if key in first else [])
        first.setdefault(key, work)()

    engine._runner._run = replay  # type: ignore[attr-defined]
    for turn in range(4):  # longer and shorter prompts of the same size, more and fewer rows
        prompts = [prompt(20 + 11 * n - 2 * turn, 10 * turn + n) for n in range(4 - turn % 2)]
        assert worst(make(), prompts, ask(engine, prompts, Sampling(max_tokens=5), seed=turn)) < 1e-4
        for n in range(4):
            engine.release(n)
    assert min(replays.count(kind) for kind in ("prompt", "draw", "decode")) >= 2


@pytest.mark.parametrize("record", [True, False])
def test_the_last_layer_computes_no_more_than_the_draw_needs(recorded: Make, record: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(num_hidden_layers=3)
    engine = recorded(model, 60, 16, {"record": record}, max_batch=4, max_length=160, prefill_tokens=64)
    rows = mlp_rows(engine, monkeypatch)
    prompts = [prompt(100, 1), prompt(20, 2)]
    found = ask(engine, prompts, Sampling(max_tokens=1))
    assert worst(model, prompts, found) < 1e-4
    padded = PromptSize(64, 64, 4, 16).rows
    assert rows == [[64, 64], [64, 64], [padded, padded]] if record else [[64, 56], [64, 56], [2]]


def test_a_step_with_reports_and_one_too_large_to_record_run_as_they_come(recorded: Make) -> None:
    model = make()
    engine = recorded(model, 60, 16, {"record": True}, max_batch=4, max_length=160)
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


def test_memory_of_recorded_steps_is_left_out_of_the_caches_part(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Weights(make())
    assert recording_bytes(weights, 8) > 4096 * 4 * 3 * weights.shape.middle
    monkeypatch.setattr(engine_memory, "free_bytes", lambda device: 1000)
    gpu = torch.device("cuda")
    assert engine_memory._bytes(0.5, gpu) == 500 and engine_memory._bytes(0.5, gpu, 200) == 400
    assert engine_memory._bytes(777, gpu, 200) == 777  # bytes are what was asked for


def test_switches_that_do_not_exist_are_named() -> None:
    with pytest.raises(TurnwiseError, match="no switch 'speed'"):
        NativeEngine(make(), switches={"speed": True})
    with pytest.raises(TurnwiseError, match="draw is one of"):
        Switches(draw="quickly")
    with pytest.raises(TurnwiseError, match="overlap is true or false, not 'off'"):
        NativeEngine.ready(Sampling(), {"switches": {"overlap": "off"}})
    assert not PLAIN.changed and Switches.of(None).changed and Switches.of({"merge": False}).record
