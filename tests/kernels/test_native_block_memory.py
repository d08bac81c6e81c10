"""Attention fits into the memory of an SM, on large GPUs and on small ones."""

from __future__ import annotations

import pytest
import torch

from turnwise.kernels.gpu import needed, rows_and_stages, shared_memory
from turnwise.util.errors import TurnwiseError

H200, A100, RTX = 232448, 166912, 101376  # bytes that a program may take


def chosen(memory: int, size: int, item: int, most: int = 64) -> tuple[int, int]:
    return rows_and_stages(memory, most, size, 64, 2 * 64 * size * item, item)


@pytest.mark.parametrize(("memory", "size", "item", "expected"), [
    (H200, 128, 2, (64, 3)), (H200, 256, 2, (64, 2)), (H200, 128, 4, (64, 3)), (H200, 256, 4, (64, 2)),
    (A100, 128, 2, (64, 3)), (A100, 256, 2, (64, 2)), (A100, 128, 4, (64, 2)),
    (RTX, 128, 2, (64, 3)), (RTX, 64, 2, (64, 3)), (RTX, 256, 2, (32, 2)), (RTX, 128, 4, (32, 2)), (RTX, 64, 4, (64, 3)),
])  # fmt: skip
def test_as_many_queries_at_once_as_there_is_memory_for(memory: int, size: int, item: int, expected: tuple[int, int]) -> None:
    assert chosen(memory, size, item) == expected


@pytest.mark.parametrize(("rows", "size", "compiled"), [(64, 256, 106496), (128, 256, 147456)])
def test_the_estimate_is_what_compiled_programs_take_and_little_more(rows: int, size: int, compiled: int) -> None:
    """What Triton 3.6 reports for prompts in bfloat16 and two stages."""
    assert 0 <= needed(rows, 2, size, 64, 2 * 64 * size * 2, 2) - compiled <= 1024


def test_what_fits_nowhere_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(TurnwiseError, match=r"heads of 256 numbers of 32 bits needs 149 KB.*SMs have 99: set model.dtype = bfloat16"):
        chosen(RTX, 256, 4, most=16)
    assert shared_memory(torch.device("cpu")) > H200
