"""Attention in stretches of equal length (`balance_kernel`), in Triton's interpreter: the plan, and what it gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_doubles import _attend, rotate
from test_native_kernels import Layer, Shape, Tables, in_8_bits, paged_case, random, same

from turnwise.engines.native.balance_kernel import Plan

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # numpy's about rows that are not kept
PAGE = 16


def planned(monkeypatch: pytest.MonkeyPatch, tokens: list[int], window: int = 0, resident: int = 2, **others: int) -> Plan:
    from turnwise.engines.native import balance_kernel

    for name, value in {"RESIDENT": resident, **others}.items():
        monkeypatch.setattr(balance_kernel, name, value)
    slots, positions = torch.arange(len(tokens)).int(), torch.tensor(tokens).int() - 1
    return balance_kernel.plan_of(slots + 100, positions, PAGE, window, 2)


def pieces(plan: Plan, tokens: list[int]) -> list[tuple[int, int, range]]:
    """Stretch, lane and pages, as a program finds them."""
    found = []
    for number, (first, after, begin, end, *numbers) in enumerate(plan.stretches.tolist()):
        for lane in range(first, after):
            slot, length, origin, *_ = numbers if lane == first else plan.lanes[lane].tolist()
            assert (slot, length) == (100 + lane, tokens[lane])
            begun = max(length - plan.window, 0) // PAGE if plan.window else 0
            found.append((number, lane, range(max(begin - origin, begun), min(end - origin, -(-length // PAGE)))))
    return found


@settings(max_examples=16, deadline=None)
@given(
    tokens=st.lists(st.one_of(st.integers(1, 40), st.integers(1, 3000)), min_size=1, max_size=20),
    window=st.sampled_from((0, 5, 100)),
    resident=st.integers(1, 12),
    least=st.integers(1, 4),
    beginning=st.integers(0, 3),
    merging=st.sampled_from((-1000, 0, 1, 50)),
)
def test_every_page_lies_in_one_stretch_and_all_stretches_are_equally_long(
    tokens: list[int], window: int, resident: int, least: int, beginning: int, merging: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plan = planned(patch, tokens, window, resident, LEAST=least, BEGINNING=beginning, MERGING=merging)
    found = pieces(plan, tokens)
    seen = [-(-n // PAGE) - (max(n - window, 0) // PAGE if window else 0) + beginning for n in tokens]
    count = max(1, min(2 * resident, sum(seen) // least))
    whole = len(tokens) <= count and (max(seen) - merging) * count <= sum(seen)
    lengths = [end - begin for begin, end in plan.stretches[:, 2:4].tolist() if end > begin]
    assert max(lengths) - min(lengths) <= 1 and len(lengths) == (len(tokens) if whole else count)
    assert sum(lengths) == (len(tokens) * max(seen) if whole else sum(seen))
    for lane, length in enumerate(tokens):
        own = [(number, pages) for number, other, pages in found if other == lane]
        begun = max(length - window, 0) // PAGE if window else 0
        assert [page for _, pages in own for page in pages] == list(range(begun, -(-length // PAGE)))
        assert all(len(pages) for _, pages in own)
        assert plan.lanes[lane, 3:5].tolist() == [own[0][0], len(own)]
        assert [number for number, _ in own] == list(range(own[0][0], own[-1][0] + 1))
    for number, (first, after, *_) in enumerate(plan.stretches.tolist()):
        if first < after:
            assert plan.stretches[number, 4:9].tolist() == plan.lanes[first, :5].tolist()
    places = [number + lane for number, lane, _ in found]
    assert len(set(places)) == len(places) and max(places) < len(plan.stretches) + len(tokens)


CASES = [
    ([64, 64, 64, 64], 2, "model"), ([1, 17, 90, 16, 33, 5], 1, "model"), ([1, 17, 90, 16, 33, 5], 6, "model"), ([150], 5, "model"),
    ([1, 2, 3], 4, "model"), ([60, 33, 50, 64], 2, "whole"), ([130, 1, 120], 7, "next"),
    ([1, 17, 90, 33], 3, "8bit"), ([1, 17, 60, 33], 3, "8bit, relative"),
    ([1, 17, 90, 16, 33, 150], 2, "window"), ([150, 90], 8, "window"), ([1, 17, 60, 33], 3, "parts"),
]  # fmt: skip


def exact(
    qkv: torch.Tensor, cache: torch.Tensor, layer: Any, tables: Tables, slots: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention of whole lanes in float64, and the cache with the new keys and values."""
    turned, kept = qkv.double(), cache.clone() if cache.dtype == torch.int8 else cache.double()
    rotate(turned, kept, layer, tables, slots, positions, Shape())
    lanes = enumerate(zip(slots.tolist(), positions.tolist(), strict=True))
    rows = [_attend(turned[n : n + 1, :64], kept, layer, tables.pages[slot], at, Shape()) for n, (slot, at) in lanes]
    return torch.cat(rows), kept


@pytest.mark.parametrize(("tokens", "resident", "kind"), CASES)
def test_stretches_give_the_attention_of_whole_lanes(monkeypatch: pytest.MonkeyPatch, tokens: list[int], resident: int, kind: str) -> None:
    from turnwise.engines.native import balance_kernel, paged_attention

    monkeypatch.setattr(paged_attention, "LOT", 4 if kind in ("next", "window", "8bit") else 0)
    monkeypatch.setattr(balance_kernel, "RESIDENT", resident)
    monkeypatch.setattr(balance_kernel, "LEAST", 1)
    monkeypatch.setattr(balance_kernel, "MERGING", 1 if kind == "whole" else -1000)
    monkeypatch.setattr(balance_kernel, "NEXT", kind == "next")
    qkv, cache, tables, positions = paged_case(tokens)
    lanes = len(positions)
    slots, arrivals = torch.arange(lanes).int(), torch.zeros(2 * lanes, dtype=torch.int32)
    layer = Layer(shift=random(208, 2, 16, seed=8) if "relative" in kind else None, window=40 if kind == "window" else 0)
    cache = in_8_bits(cache) if "8bit" in kind else cache
    expected, other = exact(qkv, cache, layer, tables, slots, positions)
    given = torch.stack([qkv - 1.0, qkv * 0.5, 1.0 - qkv * 0.5]) if kind == "parts" else qkv
    plan = balance_kernel.plan_of(slots, positions, PAGE, layer.window, 2)
    found = balance_kernel.attend_balanced(given, cache, layer, tables, plan, Shape(), arrivals)
    assert (found - expected).abs().max() < 2e-5 and same(cache, other) and not arrivals.any()


def test_padding_lanes_read_the_padding_page_and_leave_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from turnwise.engines.native import balance_kernel

    monkeypatch.setattr(balance_kernel, "RESIDENT", 3)
    qkv, cache, tables, positions = paged_case([90, 33, 1, 1, 1, 1, 1])
    slots, arrivals = torch.tensor([0, 1, 6, 6, 6, 6, 6]).int(), torch.zeros(14, dtype=torch.int32)
    expected, _ = exact(qkv, cache, Layer(), tables, slots, positions)
    plan = balance_kernel.plan_of(slots, positions, PAGE, 0, 2)
    found = balance_kernel.attend_balanced(qkv, cache, Layer(), tables, plan, Shape(), arrivals)
    assert (found[:2] - expected[:2]).abs().max() < 2e-5 and found.isfinite().all() and not arrivals.any()
