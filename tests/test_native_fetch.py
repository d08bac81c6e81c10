"""What decode steps ask for ahead of time: never more than allowed, never beyond a matrix, and whole requests only."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.engines.native import fetch


@given(rows=st.integers(1, 5000), width=st.integers(1, 600), most=st.integers(0, 1 << 22))
def test_the_beginning_of_a_weights_rows_stays_inside_them_and_within_the_bound(rows: int, width: int, most: int) -> None:
    weight = torch.empty(rows, width, dtype=torch.bfloat16, device="meta")
    asked = fetch.of_weight(weight, most)
    if asked is None:
        assert most < 128 * rows or width * 2 % 16
    else:
        assert asked.size % 16 == 0 and 0 < asked.size <= width * 2 and asked.size * rows <= max(most, 0)


@pytest.mark.parametrize("lanes", [1, 7, 128, 512])
@pytest.mark.parametrize("most", [0, 1 << 15, 1 << 20, 24 << 20])
def test_pages_are_those_of_the_lanes_that_begin_first_within_the_bound(lanes: int, most: int) -> None:
    cache = torch.empty(2, 3, 2, 64, 128, dtype=torch.bfloat16)
    slots = torch.arange(lanes).int()
    tables = SimpleNamespace(pages=torch.zeros(lanes, 20, dtype=torch.int32))
    asked = fetch.of_pages(cache, tables, slots, slots, most)
    both = 2 * 64 * 128 * 2
    if asked is None:
        assert most < both * min(lanes, fetch.FIRST_PROGRAMS)
    else:
        assert asked.lines == min(lanes, fetch.FIRST_PROGRAMS) and asked.lines * asked.size * both <= most
        *_, kind, requests = asked.arguments(lanes)
        assert kind == fetch.PAGES and requests >= max(fetch.THREADS, 2 * fetch.PIECES * asked.size)


@given(lines=st.integers(1, 20000), programs=st.integers(1, 600))
def test_every_row_of_a_weight_is_some_programs_share(lines: int, programs: int) -> None:
    *_, requests = fetch.Fetch(fetch.LINES, torch.empty(1, 8), lines, 16).arguments(programs)
    assert requests * programs >= lines and requests >= fetch.THREADS and requests & (requests - 1) == 0
