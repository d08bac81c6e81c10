"""Matrix products in Triton, for shapes where they beat the library's: few rows (`product_table.py` has the shapes).

With few rows a product reads its weights once and computes little, so what counts is that every SM reads from the first moment to the last.
`product` can split the inner size among programs; their parts are sums in float32 that `layer.add_norm` adds up, in a fixed order and
rounded once, as the library's own reduction does. Products with weights in 4 bits are in `product_4bit.py`, the two halves of an MLP on
Hopper GPUs in `hopper/tiles.py`.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-not-found, unused-ignore]

from turnwise.kernels.layer import allow_next, launching, wait_for_last
from turnwise.kernels.product_table import Blocks


@triton.jit
def _bring(weight, first, size, width, numbers, COLUMNS: tl.constexpr):
    """Ask for the first numbers of some of the weight's rows, so that they are in the GPU's cache when the loop begins."""
    column = tl.minimum(first + tl.arange(0, COLUMNS), size - 1).to(tl.int64)
    place = (weight + column * width).to(tl.int64, bitcast=True)
    count = tl.zeros([COLUMNS], tl.int32) + numbers * (weight.dtype.element_ty.primitive_bitwidth // 8)
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.gt.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r", [place, count], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["ahead"])
def _product(
    x, weight, raw, bias, out, rows, size, width, ahead,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PART: tl.constexpr, BIAS: tl.constexpr, BULK: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    allow_next(OVERLAP)
    first_column, first_row, split = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS, tl.program_id(2)
    share = tl.cdiv(width // PART, tl.num_programs(2))
    begin = split * share
    end = tl.minimum(begin + share, width // PART)
    row, column, part = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS), tl.arange(0, PART)
    if OVERLAP:
        _bring(raw + tl.minimum(begin, width // PART - ahead) * PART, first_column, size, width, ahead * PART, COLUMNS)
    wait_for_last(OVERLAP)
    if not BULK:
        here = x + tl.minimum(row, rows - 1)[:, None] * width + part[None, :]
        there = weight + tl.minimum(column, size - 1).to(tl.int64)[:, None] * width + part[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(begin, end):
        if BULK:
            a = x.load([first_row, step * PART])
            b = weight.load([first_column, step * PART])
        else:
            a = tl.load(here + step * PART)
            b = tl.load(there + step * PART)
        total = tl.dot(a, tl.trans(b), total, input_precision=PRECISION)
    if BIAS:
        added = tl.load(bias + tl.minimum(column, size - 1)).to(tl.float32)
        total += tl.where(split == 0, added, 0.0)[None, :]
    target = out + (split.to(tl.int64) * rows + row[:, None]) * size + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(row[:, None] < rows) & (column[None, :] < size))


def product(x: Tensor, weight: Tensor, bias: Tensor | None, blocks: Blocks, overlap: bool = False) -> Tensor:
    """The rows of x times the weight [size, width]: [rows, size] rounded, or with a split its parts [split, rows, size] in float32."""
    (rows, width), size = x.shape, len(weight)
    parts = blocks.split > 1
    out = torch.empty((blocks.split, rows, size) if parts else (rows, size), dtype=torch.float32 if parts else x.dtype, device=x.device)
    grid = (triton.cdiv(size, blocks.columns), triton.cdiv(rows, blocks.rows), blocks.split)
    ahead = min(blocks.ahead, width // blocks.part // blocks.split)  # parts that are asked for before the last kernel has ended
    _product[grid](
        _tiled(x, blocks.rows, blocks), _tiled(weight, blocks.columns, blocks), weight, x if bias is None else bias, out, rows, size,
        width, ahead, ROWS=blocks.rows, COLUMNS=blocks.columns, PART=blocks.part, BIAS=bias is not None, BULK=blocks.bulk,
        PRECISION=precision(x), OVERLAP=overlap,
        num_warps=blocks.warps, num_stages=blocks.stages, **launching(overlap),
    )  # fmt: skip
    return out


def fits(x: Tensor, weight: Any, blocks: Blocks) -> bool:
    """Whether these kernels take a product: plain rows of one dtype, an inner size of whole parts, and rows that begin at 16 bytes."""
    plain = x.dtype == weight.dtype and x.is_contiguous() and weight.is_contiguous() and len(weight) % 16 == 0
    return bool(plain and x.shape[1] % blocks.part == 0 and x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0)


def precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _tiled(matrix: Tensor, height: int, blocks: Blocks) -> Any:
    return TensorDescriptor.from_tensor(matrix, [height, blocks.part]) if blocks.bulk else matrix
