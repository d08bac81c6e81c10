"""benchmarks/allocator_gaps.py: the model of the allocator keeps its books, and the prediction of gaps covers what it needs."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from conftest import ROOT

from turnwise.config.loading import load_file

MIB = 2**20


@pytest.fixture(scope="module")
def gaps() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return load_file(ROOT / "benchmarks" / "allocator_gaps.py")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("way", ["pieces", "growing segments"])
def test_tensors_never_share_memory_and_what_is_held_stays_within_the_limit(gaps: Any, way: str) -> None:
    numbers, memory = random.Random(0), gaps.WAYS[way](400 * MIB)
    taken: list[Any] = []
    short = 0
    for _ in range(600):
        if taken and numbers.random() < 0.45:
            memory.give(taken.pop(numbers.randrange(len(taken))))
        else:
            try:
                taken.append(memory.take(numbers.randint(MIB, 40 * MIB)))
            except gaps.Shortage:
                short += 1
                memory.give(taken.pop(0))
        ranges = sorted((block.start, block.start + block.size) for block in taken)
        assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
        assert memory.used == sum(block.size for block in taken) <= memory.held <= 400 * MIB
    assert short, "the limit was reached"
    for block in taken:
        memory.give(block)
    memory.release()
    assert memory.held == memory.used == 0


def test_a_gap_of_several_pages_is_lost_in_pieces_and_none_in_segments(gaps: Any) -> None:
    """Two tensors with one between them that stays: what they leave, 160 MiB, serves a larger one only if pages can be given back."""
    found = {}
    for way in gaps.WAYS:
        memory = gaps.WAYS[way](250 * MIB)
        memory.give(memory.take(200 * MIB))  # of which the next three get parts
        first, stays, last = (memory.take(size * MIB) for size in (80, 20, 80))
        memory.give(first)
        memory.give(last)
        try:
            found[way] = memory.take(150 * MIB).size
        except gaps.Shortage:
            found[way] = 0
        assert stays.state == "used"
    assert found == {"pieces": 0, "growing segments": 150 * MIB}


def test_the_predicted_gaps_are_enough_with_segments_and_places_and_not_without(gaps: Any) -> None:
    demand = replace(gaps.SMALL, prefill=8192)
    peak = gaps.plays("growing segments", demand, True, float("inf"))
    limit = peak + gaps.gaps_of(demand)
    assert gaps.plays("growing segments", demand, True, limit) == peak
    assert gaps.plays("pieces", demand, False, limit) is None
