"""Attention fits into the memory of an SM, on large GPUs and on small ones."""

from __future__ import annotations

import pytest
import torch

from turnwise.kernels.gpu import needed, rows_and_stages, shared_memory
from turnwise.util.errors import TurnwiseError

H200, A100, RTX = 232448, 166912, 101376  # bytes that a program may take


def chosen(memory: int, size: int, item: int, cache: int | None = None, most: int = 64) -> tuple[int, int]:
    return rows_and_stages(memory, most, size, 64, 2 * 64 * size * (cache or item), item)


@pytest.mark.parametrize(("memory", "size", "item", "expected"), [
    (H200, 128, 2, (64, 3)), (H200, 256, 2, (64, 2)), (H200, 128, 4, (64, 3)), (H200, 256, 4, (64, 2)),
    (A100, 128, 2, (64, 3)), (A100, 256, 2, (64, 2)), (A100, 128, 4, (64, 2)),
    (RTX, 128, 2, (64, 3)), (RTX, 64, 2, (64, 3)), (RTX, 256, 2, (32, 2)), (RTX, 128, 4, (32, 2)), (RTX, 64, 4, (64, 3)),
])  # fmt: skip
def test_as_many_queries_at_once_as_there_is_memory_for(memory: int, size: int, item: int, expected: tuple[int, int]) -> None:
    assert chosen(memory, size, item) == expected


@pytest.mark.parametrize(("rows", "size", "cache", "compiled"), [(64, 256, 2, 106496), (128, 256, 2, 147456), (128, 256, 1, 115200)])
def test_the_estimate_is_what_compiled_programs_take_and_little_more(rows: int, size: int, cache: int, compiled: int) -> None:
    """What Triton 3.6 reports for prompts in bfloat16, with a cache of the same numbers or in 8 bits, and two stages."""
    assert 0 <= needed(rows, 2, size, 64, 2 * 64 * size * cache, 2) - compiled <= 1024


def test_pages_in_8_bits_are_unpacked_for_products_in_float32() -> None:
    """131,328 bytes were reported for 64 queries of 128 numbers, with keys relative to their bias."""
    page_bytes = 64 * 128 * (2 + 4)
    assert 0 <= needed(64, 2, 128, 64, page_bytes, 4, packed=True) - 131328 <= 1024
    assert rows_and_stages(RTX, 64, 128, 64, page_bytes, 4, packed=True) == (16, 2)


def test_what_fits_nowhere_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(TurnwiseError, match=r"heads of 256 numbers of 32 bits needs 149 KB.*SMs have 99: set model.dtype = bfloat16"):
        chosen(RTX, 256, 4, most=16)
    assert shared_memory(torch.device("cpu")) > H200
