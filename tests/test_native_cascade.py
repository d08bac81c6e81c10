"""Prefixes that rows share are read once in decode steps: who reads together with whom, and that it changes no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_models import ask, make, prompt, worst
from test_native_cache import random_requests_are_right
from test_native_recorded import Make, recorded  # noqa: F401  # a fixture

from turnwise.engines.base import Request, Sampling
from turnwise.engines.native import NativeEngine, cascade
from turnwise.engines.native.cache_pages import Chain
from turnwise.engines.native.cascade import Group, Layout, Planner, groups_of
from turnwise.engines.native.requests import RunningRequest

CASCADE = {"record": True, "draw": "tiles", "merge": True, "cascade": True}


def chain(*beginning: int, own: int = 3, start: int = 1000) -> list[int]:
    return [*beginning, *range(start, start + own)]


def test_rows_with_the_same_first_pages_are_a_group() -> None:
    tasks = [[100 * n + page for page in range(6)] for n in range(1, 4)]
    chains = [chain(*tasks[lane % 3], start=1000 + 10 * lane) for lane in range(13)]
    found = groups_of(chains)
    assert found[0] == Group((0, 3, 6, 9, 12), 6)
    assert {group.lanes for group in found[1:]} == {(1, 4, 7, 10), (2, 5, 8, 11)}


def test_the_better_of_one_large_group_and_its_parts_is_taken() -> None:
    system = list(range(5))
    few = [[*system, 200 + lane, 300 + lane] for lane in range(8)]
    assert groups_of(few) == [Group(tuple(range(8)), 5)]
    many = [[*system, *(100 * (lane // 4 + 1) + page for page in range(20)), 900 + lane] for lane in range(8)]
    assert groups_of(many) == [Group((0, 1, 2, 3), 25), Group((4, 5, 6, 7), 25)]


def test_few_rows_and_few_pages_are_no_group() -> None:
    assert groups_of([chain(1, 2, 3, 4, 5, start=100 * lane) for lane in range(1, 4)]) == []
    assert groups_of([chain(1, 2, 3, start=100 * lane) for lane in range(1, 9)]) == []
    assert groups_of([[] for _ in range(9)]) == []


def test_a_plan_names_every_lane_once_and_leaves_out_what_has_no_room() -> None:
    layout = Layout.of(16, 8)
    assert layout == Layout(16, 8) and layout.sizes == (16, 4 * 9)
    shared, blocks = layout.write([Group(tuple(range(10)), 7), Group((10, 11, 12, 14), 5)])
    assert shared.tolist() == [7] * 10 + [5] * 3 + [0, 5, 0]
    assert blocks.reshape(4, 9).tolist() == [
        [7, *range(8)],
        [7, 8, 9, *[-1] * 6],
        [5, 10, 11, 12, 14, *[-1] * 4],
        [0, *[-1] * 8],
    ]
    shared, blocks = Layout(8, 8).write([Group((0, 1, 2, 3), 4), Group((4, 5), 9), Group((6, 7), 2)])
    assert shared.tolist() == [4] * 4 + [9] * 2 + [0, 0]
    assert Layout.of(16, 12) is None and Layout.of(2, 1) is None


def running(pages: list[int], computed: int) -> RunningRequest:
    request = Request(0, [1] * computed, Sampling())
    return RunningRequest(request, [1] * computed, 500, None, chain=Chain(pages), computed=computed)


def test_a_plan_is_made_again_if_a_row_or_its_chain_is_another_one() -> None:
    planner, rows = Planner(16), [running([1, 2, 3, 4, 5, 10 + n], 16 * 5 + n) for n in range(8)]
    assert planner.groups(rows) == [Group(tuple(range(8)), 5)]
    assert planner.groups(rows) is planner.groups(rows)
    rows[3].chain = Chain([7, 8, 9, 10, 11, 12])  # put back, and admitted again
    assert planner.groups(rows) == [Group((0, 1, 2, 4, 5, 6, 7), 5)]
    assert planner.groups(rows[:6]) == [Group((0, 1, 2, 4, 5), 5)]
    for row in rows:
        row.computed += 2000
    assert planner.groups(rows) == []  # little of what is read is common


def test_unless_it_is_asked_for_only_large_steps_that_save_much_read_together(
    recorded: Make,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner, rows = Planner(64, 1024), [running([*range(16), 100 + n], 64 * 16 + 9) for n in range(300)]
    assert planner.groups(rows) == [Group(tuple(range(300)), 16)]  # 299 · 16 · 64 tokens of 1,024 bytes: 314 MB
    assert planner.groups(rows[:280]) == [] and Planner(64).groups(rows[:280]) != []
    model, prompts = make(num_hidden_layers=1), [[*prompt(70, 1), *prompt(3 + n, n)] for n in range(9)]

    def decoded(**switches: Any) -> set[str]:
        engine = recorded(model, 200, 16, {**CASCADE, "cascade": "auto", **switches}, max_batch=12, max_length=192)
        ask(engine, prompts, Sampling(max_tokens=5), seed=0)
        return {key[3] for key in engine._runner._graphs_of if key[0] == "decode"}  # type: ignore[attr-defined]

    assert decoded() == {"single"} and "cascade" in decoded(cascade=True)
    monkeypatch.setattr("turnwise.engines.native.recorded.LARGE", 8)
    assert decoded() == {"single"}
    monkeypatch.setattr(cascade, "LEAST", 1e4)
    assert "cascade" in decoded() and decoded(cascade=False) == {"single"}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 9)), max_size=24))
def test_groups_are_those_that_all_lanes_together_fall_into(shape: list[tuple[int, int, int]]) -> None:
    chains = []
    for task, half, own in shape:
        beginning, rest = 10 * task, 1000 * (1 + half) + 100 * task
        chains.append([*range(beginning, beginning + 5), *range(rest, rest + own)])

    def in_order(groups: list[Group]) -> list[Group]:
        return sorted(groups, key=lambda group: group.lanes)

    expected, found = in_order(cascade._best(list(range(len(chains))), 0, chains)[1]), in_order(groups_of(chains))
    assert found == expected


@pytest.mark.parametrize("kind", ["model", "8bit"])
def test_groups_that_share_a_prompt_get_the_results_of_a_step_without_a_plan(recorded: Make, kind: str) -> None:  # noqa: F811
    model = make(num_hidden_layers=1)
    engine = recorded(model, 200, 16, CASCADE, max_batch=12, max_length=192, cache_dtype=kind)
    plain = recorded(model, 200, 16, {**CASCADE, "cascade": False}, max_batch=12, max_length=192, cache_dtype=kind)
    prompts = [[*prompt(70, n // 5), *prompt(3 + n, n)] for n in range(9)]  # a group of five, and four rows more
    for turn in range(2):
        found, expected = (ask(one, prompts, Sampling(max_tokens=5), seed=turn) for one in (engine, plain))
        assert {n: r.token_ids for n, r in found.items()} == {n: r.token_ids for n, r in expected.items()}
        assert kind == "8bit" or worst(model, prompts, found) < 1e-4
        prompts = [[*ids, *found[n].token_ids, *prompt(5, n)] for n, ids in enumerate(prompts)]
    ours, others = ({key[3] for key in one._runner._graphs_of if key[0] == "decode"} for one in (engine, plain))  # type: ignore[attr-defined]
    assert "cascade" in ours and others == {"single"}


def test_random_requests_keep_their_logprobs_and_leak_no_page(recorded: Make) -> None:  # noqa: F811
    model = make(num_hidden_layers=1)
    engine = recorded(model, 40, 16, CASCADE, max_batch=8, max_length=192, stop_token_ids=[3, 4, 5], prefill_tokens=64)
    random_requests_are_right(engine, model, 30)


def test_a_replayed_step_follows_the_plan_that_the_host_has_sent_since(recorded: Make) -> None:  # noqa: F811
    model = make(num_hidden_layers=1)
    engine: NativeEngine = recorded(model, 300, 16, CASCADE, max_batch=12, max_length=192)
    first: dict[Any, Callable[[], None]] = {}
    replays: list[Any] = []

    def replay(key: Any, work: Callable[[], None]) -> None:
        replays.extend([key[3]] if key in first and key[0] == "decode" else [])
        first.setdefault(key, work)()

    engine._runner._run = replay  # type: ignore[attr-defined]
    for turn in range(3):
        prompts = [[*prompt(70, 10 * turn + n % (turn + 1)), *prompt(2, n)] for n in range(12)]  # one, two, three groups
        assert worst(model, prompts, ask(engine, prompts, Sampling(max_tokens=5), seed=turn)) < 1e-4
        for n in range(12):
            engine.release(n)
    assert replays.count("cascade") >= 6
