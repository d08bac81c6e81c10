"""What a step brings with it from the host, put where it belongs: tokens and pages of a decode step, settings of new rows by slot, and
copies of pages. One kernel each."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor


@triton.jit
def _note(records, table, last, floats, integers, stride, width, PAGES: tl.constexpr):
    record = records + tl.program_id(0) * stride
    slot = tl.load(record).to(tl.int64)
    page = tl.arange(0, PAGES)
    tl.store(table + slot * width + page, tl.load(record + 9 + page, mask=page < width, other=0), mask=page < width)
    tl.store(last + slot, tl.load(record + 1).to(tl.int64))
    tl.store(integers + slot * 3, tl.load(record + 2).to(tl.int64))
    tl.store(integers + slot * 3 + 1, tl.load(record + 3).to(tl.int64))
    low = tl.load(record + 4).to(tl.uint32, bitcast=True).to(tl.int64)
    tl.store(integers + slot * 3 + 2, (tl.load(record + 5).to(tl.int64) << 32) | low)
    for number in tl.static_range(3):
        tl.store(floats + slot * 3 + number, tl.load(record + 6 + number).to(tl.float32, bitcast=True))


def note(records: Tensor, tables: Any) -> None:
    """Rows with a new slot. `records` [rows, 9 + pages] int32: slot, last token, greedy, top-k, the seed's low and high half, the bits of
    temperature, top-p and min-p, and the pages."""
    width = tables.pages.shape[1]
    _note[(len(records),)](
        records, tables.pages, tables.last, tables.floats, tables.integers, records.stride(0), width, PAGES=triton.next_power_of_2(width)
    )


@triton.jit
def _copy(cache, pairs, layer, size, BLOCK: tl.constexpr):
    pair, number = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source = cache + number * layer + tl.load(pairs + pair * 2).to(tl.int64) * size
    target = cache + number * layer + tl.load(pairs + pair * 2 + 1).to(tl.int64) * size
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(target + place, tl.load(source + place, mask=place < size), mask=place < size)


def copy_pages(cache: Tensor, pairs: Tensor) -> None:
    """Whole pages, in all layers. `cache` [layers, keys and values, pages, …], `pairs` [copies, 2] int32: source, target; no page is
    both."""
    size = cache[0, 0, 0].numel()
    _copy[(len(pairs), cache.shape[0] * cache.shape[1])](cache, pairs, cache.stride(1), size, BLOCK=2048, num_warps=8)


@triton.jit
def _begin(control, last, table, tokens, seqs, table_stride, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    seq = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = seq < seqs
    slot = tl.load(control + seq, mask=inside, other=0).to(tl.int64)
    position = tl.load(control + seqs + seq, mask=inside, other=0)
    page = tl.load(control + 2 * seqs + seq, mask=inside, other=0)
    tl.store(table + slot * table_stride + position // PAGE, page, mask=inside)
    tl.store(tokens + seq, tl.load(last + slot, mask=inside, other=0), mask=inside)


def begin(control: Tensor, last: Tensor, table: Tensor, page_size: int) -> Tensor:
    """The tokens of a decode step. `control` [4, seqs]: slot, position, page of that position, index of the draw. Notes the page in the
    slot's table, and reads the slot's last token."""
    seqs = control.shape[1]
    tokens = torch.empty(seqs, dtype=torch.int64, device=control.device)
    _begin[(triton.cdiv(seqs, 128),)](control, last, table, tokens, seqs, table.stride(0), PAGE=page_size, BLOCK=128)
    return tokens
