"""The native engine's cache: what is reused, shared, evicted and given back; and that none of it changes a result."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from native_models import ask, drain, make, prompt, worst
from native_requests import Counted, random_requests_are_right, token_bytes

from turnwise.engines.base import Finish, Request, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.native.cache_pages import CachePages, Chain
from turnwise.engines.native.cpu_runner import untouched_zeros
from turnwise.engines.native.requests import Step
from turnwise.kernels import attend_cpu
from turnwise.kernels.cache_8bit import SCALE, views
from turnwise.util.errors import TurnwiseError
from turnwise.util.prefix import common_length, extend_to

GREEDY = Sampling(temperature=0.0, max_tokens=6)


@pytest.mark.parametrize(
    "kind", [tuple, np.array, lambda ids: [np.int64(token) for token in ids]], ids=["tuple", "array", "numpy's integers"]
)
def test_a_dialogue_goes_on_whatever_its_prompt_is_made_of(kind: Callable[[list[int]], Any]) -> None:
    engines = NativeEngine(make(), max_length=256), NativeEngine(make(), max_length=256)
    ids = prompt(50)
    counted = [Counted(engine) for engine in engines]
    for turn in range(3):
        plain, other = (ask(engine, [given], GREEDY)[0] for engine, given in zip(engines, (ids, kind(ids)), strict=True))
        assert plain == other and {type(token) for token in other.token_ids} == {int}
        ids = [*ids, *plain.token_ids, *prompt(10, 100 + turn)]
    assert counted[0].tokens == counted[1].tokens


def test_a_token_that_the_model_does_not_know_is_refused_also_late_in_a_dialogue() -> None:
    engine = NativeEngine(make(), max_length=256)
    ids = prompt(50)
    ids = [*ids, *ask(engine, [ids], GREEDY)[0].token_ids]
    for wrong in (97, -1):
        refused = ask(engine, [[*ids, 5, wrong]], GREEDY)[0]
        assert refused.finish is Finish.REFUSED and "the model knows 0 to 96" in refused.message
    assert ask(engine, [[*ids, 5]], GREEDY)[0].finish is not Finish.REFUSED


def test_two_requests_that_continue_one_trajectory_do_not_disturb_each_other() -> None:
    model, engine = make(), NativeEngine(make(), max_length=256)
    ids = prompt(50)
    ids = [*ids, *ask(engine, [ids], GREEDY)[0].token_ids]
    further = [[*ids, *prompt(10, seed)] for seed in (7, 8)] + [ids[:40]]
    for key, given in enumerate(further):
        engine.submit([Request(key, list(given), GREEDY, 0, 0)])
    assert worst(model, further, drain(engine)) < 1e-4


def test_a_changed_history_is_reused_up_to_the_change() -> None:
    model, engine = make(), NativeEngine(make(), max_length=256)
    ids = prompt(80)
    ask(engine, [ids], GREEDY)
    counted = Counted(engine)
    changed = [*ids[:60], (ids[60] + 1) % 97, *prompt(30, 7)]
    assert worst(model, [changed], ask(engine, [changed], GREEDY)) < 1e-4
    assert counted.tokens == 31 + 5
    shorter = changed[:40]
    assert worst(model, [shorter], ask(engine, [shorter], GREEDY)) < 1e-4
    assert counted.tokens == 31 + 5 + 1 + 5
    assert worst(model, [ids], ask(engine, [ids], GREEDY)) < 1e-4


def test_a_groups_common_prompt_is_computed_once() -> None:
    model, engine = make(), NativeEngine(make(), max_length=256)
    counted = Counted(engine)
    prompts = [prompt(90) for _ in range(8)] + [[*prompt(90), *prompt(4, n)] for n in range(4)]
    responses = ask(engine, prompts, Sampling(max_tokens=6))
    assert counted.tokens == 90 + 7 * 1 + 4 * 4 + 12 * 5
    assert worst(model, prompts, responses) < 1e-4
    assert len({r.token_ids for r in responses.values()}) > 8  # each has its own seed


def test_requests_that_come_later_use_what_earlier_ones_left() -> None:
    model, engine = make(), NativeEngine(make(), max_length=256)
    ask(engine, [prompt(100)], GREEDY)
    engine.release(0)
    counted = Counted(engine)
    second = ask(engine, [[*prompt(70), *prompt(20, 3)]], GREEDY, first=5)
    assert counted.tokens == 20 + 5
    assert worst(model, [[*prompt(70), *prompt(20, 3)]], {0: second[5]}) < 1e-4


def test_nothing_computed_before_refresh_or_sleep_is_used_after_it() -> None:
    model = make()
    engine = NativeEngine(model, max_length=256)
    for act in (engine.refresh, engine.sleep):
        ask(engine, [prompt(60)], GREEDY)
        act()
        counted = Counted(engine)
        ask(engine, [prompt(60)], GREEDY)
        assert counted.tokens == 60 + 5


def test_sleep_gives_the_memory_back_and_the_next_poll_takes_it_again() -> None:
    model, ids = make(), prompt(30)
    engine = NativeEngine(model, max_length=256)
    first = ask(engine, [ids], GREEDY)
    engine.submit([Request(1, ids, Sampling(max_tokens=20), seed=4, sequence=1), Request(2, ids, GREEDY, sequence=2)])
    engine.poll()
    engine.sleep()
    assert engine._runner._cache is None  # type: ignore[attr-defined]
    rest = drain(engine)
    assert len(rest[1].token_ids) == 20 and worst(model, [ids], {0: rest[1]}) < 1e-4
    assert ask(engine, [ids], GREEDY)[0].token_ids == first[0].token_ids


def test_too_little_memory_for_one_sequence_is_said_at_once() -> None:
    with pytest.raises(TurnwiseError, match=r"cache_memory.*max_length"):
        NativeEngine(make(), max_length=128, cache_memory=1000)
    with pytest.raises(TurnwiseError, match="bytes"):
        NativeEngine(make(), cache_memory=0.5)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the process's memory is read from /proc")
def test_a_large_cache_takes_no_memory_of_a_cpu_before_it_is_used() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before, size = resident(), (4, 2, 64, 2, 1024, 64)
    for dtype in (torch.float32, torch.bfloat16):
        made = untouched_zeros(size, dtype, torch.device("cpu"))
        assert made.shape == size and made.dtype == dtype and made.data_ptr() % 64 == 0 and made.is_contiguous()
        assert resident() - before < made.nbytes // 2
        assert not made[1:3, 1, 5].any()


def test_a_release_in_the_middle_of_a_request_leaves_nothing_behind() -> None:
    engine = NativeEngine(make(), max_length=128)
    engine.submit([Request(0, prompt(20), GREEDY, sequence=9), Request(1, prompt(7, 1), Sampling(max_tokens=2), sequence=8)])
    engine.poll()
    engine.release(9)
    engine.release(8)
    assert len(drain(engine)[0].token_ids) == 6
    assert engine._pages.held == 0


@pytest.mark.parametrize("pages", [5, 16])
def test_random_requests_leak_no_page_and_no_slot(pages: int) -> None:
    model = make(num_hidden_layers=1, hidden_size=32, intermediate_size=32)
    engine = NativeEngine(
        model, max_batch=8, max_length=192, stop_token_ids=[3, 4, 5], cache_memory=pages * 192 * token_bytes(model), prefill_tokens=64
    )
    finishes = random_requests_are_right(engine, model, 400)
    assert engine._pages._holders == [0] * pages and not engine._admitted
    assert {Finish.STOP, Finish.LENGTH, Finish.REFUSED} <= finishes
    engine.refresh()
    assert engine._pages.available == pages and not engine._pages._nodes and not engine._pages._after


def chain_of(pages: CachePages, ids: list[int]) -> Chain:
    """A chain with these tokens written and known."""
    chain = Chain(ids=list(ids), written=len(ids))
    for _ in range(pages.needed(len(ids))):
        page = pages.take()
        assert page is not None
        chain.pages.append(page)
    pages.index(chain)
    return chain


def test_small_pages_are_shared_whole_and_the_rest_is_copied() -> None:
    pages = CachePages(16, 4, 4)
    first = chain_of(pages, list(range(10)))
    same_step = pages.match(list(range(10)), 9)
    assert same_step.pages == tuple(first.pages[:2])
    assert same_step.tail == 0 and not same_step.fresh  # one token of the third page is not worth a copy, nor waiting for it
    pages.step()
    longer = chain_of(pages, [*range(8), 20, 21, 22, 23, 24, 25])
    pages.step()
    match = pages.match([*range(8), 20, 21, 22, 23, 30], 12)
    assert match.pages == (*first.pages[:2], longer.pages[2]) and match.tail == 0
    assert pages.match([1, 2, 3, 4, 5], 5).pages == ()


def test_a_page_that_others_hold_is_copied_and_never_written_over() -> None:
    pages = CachePages(8, 4, 4)
    first = chain_of(pages, list(range(8)))
    second = Chain(list(first.pages), list(range(8)), list(first.nodes), 8)
    for page in second.pages:
        pages.hold(page)
    shared = first.pages[1]
    assert pages.cut(second, 6) == (shared, 2) and second.pages == first.pages[:1]
    pages.drop([shared])  # the copy is made
    assert pages.cut(first, 6) is None and first.pages[1] == shared  # its own again
    assert pages.match(list(range(8)), 8).pages == (first.pages[0],)  # the whole second page is not there any more


def test_pages_of_nobody_are_found_until_their_memory_is_needed() -> None:
    pages = CachePages(4, 4, 4)
    first = chain_of(pages, list(range(8)))
    pages.drop(first.pages)
    pages.step()
    assert pages.held == 0 and len(pages.match(list(range(9)), 8).pages) == 2
    taken = [pages.take() for _ in range(4)]
    assert None not in taken and pages.take() is None
    assert pages.match(list(range(9)), 8).pages == ()


def test_a_list_is_extended_to_one_that_begins_with_it_and_to_no_other() -> None:
    grown = [1, 2]
    assert extend_to(grown, [1, 2, 3, 4]) and grown == [1, 2, 3, 4]
    assert extend_to(grown, [1, 2, 3, 4]) and grown == [1, 2, 3, 4]
    for other in ([1, 2, 3], [1, 9, 3, 4, 5], []):
        assert not extend_to(grown, other) and grown == [1, 2, 3, 4]


@pytest.mark.parametrize("same", range(0, 40, 3))
def test_common_length_is_the_length_of_the_common_beginning(same: int) -> None:
    first = list(range(40))
    second = [*range(same), -1, *range(same + 1, 40)][:38]
    assert common_length(first, second) == common_length(second, first) == min(same, 38)
    assert common_length(first, first) == 40 and common_length(first, []) == 0


def test_an_interrupted_step_leaves_the_engine_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = make(), prompt(40)
    engine = NativeEngine(model, max_length=128)
    run = engine._runner.run
    calls = iter(range(100))

    def interrupted(step: Step) -> Any:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return run(step)

    monkeypatch.setattr(engine._runner, "run", interrupted)
    engine.submit([Request(0, ids, GREEDY)])
    with pytest.raises(KeyboardInterrupt):
        engine.poll()
    assert worst(model, [ids], drain(engine)) < 1e-4


def test_what_memory_held_before_never_reaches_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **kind: empty(*size, **kind).fill_(torch.nan if "float" in str(kind) else 0))
    model, prompts = make(), [prompt(5), prompt(70, 1), prompt(20, 2)]
    assert worst(model, prompts, ask(NativeEngine(model, max_length=128), prompts, GREEDY)) < 1e-4


def test_a_forward_without_memory_is_tried_in_smaller_pieces_and_then_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = make(), prompt(200)
    engine = NativeEngine(model, max_length=256, prefill_tokens=256)
    run, limit = engine._runner.run, [100]

    def narrow(step: Step) -> Any:
        if step.tokens > limit[0]:
            raise torch.OutOfMemoryError("no memory")
        return run(step)

    monkeypatch.setattr(engine._runner, "run", narrow)
    assert worst(model, [ids], ask(engine, [ids], GREEDY)) < 1e-4
    assert engine.prefill_tokens == 100
    limit[0] = 0
    failed = ask(engine, [ids], GREEDY)[0]
    assert failed.finish is Finish.FAULT and "memory" in failed.message


@pytest.mark.parametrize("window", [0, 5, 40])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("pages", "alone"), [([3, 4, 5, 6], False), ([4, 9, 6, 8], False), ([0, 79, 31], True), ([70, 2], True)])
def test_rows_of_a_step_see_their_own_tokens_however_scattered_they_are(pages: list[int], alone: bool, window: int, packed: bool) -> None:
    """One call for all of them, or one for each where that reads less."""
    generator = torch.Generator().manual_seed(0)
    shape: Any = SimpleNamespace(kv_heads=2, group=3, head_dim=8, scaling=None)
    keys: Any
    values: Any
    if packed:
        cache = torch.zeros(2, 80, 2, 64, 8 + SCALE, dtype=torch.int8)
        keys, values = views(cache, torch.float32)
        everything = torch.arange(80).repeat_interleave(64), torch.arange(64).repeat(80)
        for part in (keys, values):
            part.put(*everything, torch.randn(80 * 64, 2, 8, generator=generator))
    else:
        keys, values = torch.randn(2, 80, 2, 64, 8, generator=generator)
    lengths = [17, 64, 33, 50][: len(pages)]
    query = torch.randn(len(pages), 6, 8, generator=generator)
    singles = attend_cpu.Singles(pages, lengths, torch.float32, window)
    assert (singles.alone is not None) is alone
    found = attend_cpu.Calls().attend([(singles, query)], keys, values, shape)[0].view(len(pages), 6, 8)
    for row, (page, length) in enumerate(zip(pages, lengths, strict=True)):
        seen = slice(max(0, length - window) if window else 0, length)
        k, v = ((x.part(page, seen) if packed else x[page, :, seen]).double().repeat_interleave(3, 0) for x in (keys, values))
        weights = (query[row].double()[:, None] @ k.transpose(1, 2) / 8**0.5).softmax(-1)
        assert ((weights @ v)[:, 0] - found[row]).abs().max() < 1e-5
