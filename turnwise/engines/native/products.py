"""Matrix products in Triton, for shapes where they beat the library's: few rows, and the two halves of an MLP with the activation between.

With few rows a product reads its weights once and computes little, so what counts is that every multiprocessor reads from the first
moment to the last. `product` can split the inner size among programs; their parts are sums in float32 that `kernels.add_norm` adds up, in
a fixed order and rounded once, as the library's own reduction does. `gated` computes a tile of the gate and the same tile of the other
half in one program and writes the activated product alone, for few rows and, with programs that stay (`stay`), for prompts.

Rounding is that of the library followed by the plain kernels: a product is rounded to the weights' dtype before anything else is done.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-not-found, unused-ignore]

from turnwise.engines.native.block_memory import multiprocessors
from turnwise.engines.native.kernels import activation, allow_next, launching, wait_for_last
from turnwise.engines.native.product_table import Blocks


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
    _product[grid](
        _tiled(x, blocks.rows, blocks), _tiled(weight, blocks.columns, blocks), weight, x if bias is None else bias, out, rows, size,
        width, _ahead(blocks, width), ROWS=blocks.rows, COLUMNS=blocks.columns, PART=blocks.part, BIAS=bias is not None, BULK=blocks.bulk,
        PRECISION=precision(x), OVERLAP=overlap,
        num_warps=blocks.warps, num_stages=blocks.stages, **launching(overlap),
    )  # fmt: skip
    return out


@triton.jit
def _place(tile, tiles_down, tiles_across, GROUP: tl.constexpr):
    """Where a tile is: groups of rows first, so that programs that run together read the same weights and the same rows."""
    per_group = GROUP * tiles_across
    group = tile // per_group
    height = tl.minimum(tiles_down - group * GROUP, GROUP)
    inside = tile % per_group
    return group * GROUP + inside % height, inside // height


@triton.jit
def _gated_tile(
    x, weight, bias, out, rows, size, width, down, across,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PART: tl.constexpr, GELU: tl.constexpr, BIAS: tl.constexpr,
    BULK: tl.constexpr, STORE: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    first_row, first_column = down * ROWS, across * COLUMNS
    row, column, part = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS), tl.arange(0, PART)
    if not BULK:
        here = x + tl.minimum(row, rows - 1).to(tl.int64)[:, None] * width + part[None, :]
        there = weight + tl.minimum(column, size - 1).to(tl.int64)[:, None] * width + part[None, :]
    gate = tl.zeros([ROWS, COLUMNS], tl.float32)
    up = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, width, PART):
        if BULK:
            a = x.load([first_row, start])
            b = weight.load([first_column, start])
            c = weight.load([size + first_column, start])
        else:
            a = tl.load(here + start)
            b = tl.load(there + start)
            c = tl.load(there + size.to(tl.int64) * width + start)
        gate = tl.dot(a, tl.trans(b), gate, input_precision=PRECISION)
        up = tl.dot(a, tl.trans(c), up, input_precision=PRECISION)
    if BIAS:
        gate += tl.load(bias + tl.minimum(column, size - 1)).to(tl.float32)[None, :]
        up += tl.load(bias + size + tl.minimum(column, size - 1)).to(tl.float32)[None, :]
    active = activation(gate.to(KIND).to(tl.float32), GELU).to(KIND)
    value = (active.to(tl.float32) * up.to(KIND).to(tl.float32)).to(KIND)
    if STORE:
        out.store([first_row, first_column], value)
    else:
        target = out + row.to(tl.int64)[:, None] * size + column[None, :]
        tl.store(target, value, mask=(row[:, None] < rows) & (column[None, :] < size))


@triton.jit(do_not_specialize=["ahead"])
def _gated(
    x, weight, raw, bias, out, rows, size, width, ahead,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr, GELU: tl.constexpr,
    BIAS: tl.constexpr, BULK: tl.constexpr, STAY: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    allow_next(OVERLAP)
    KIND: tl.constexpr = raw.dtype.element_ty
    tiles_down, tiles_across = tl.cdiv(rows, ROWS), tl.cdiv(size, COLUMNS)
    if OVERLAP:
        down, across = _place(tl.program_id(0), tiles_down, tiles_across, GROUP)
        _bring(raw, across * COLUMNS, size, width, ahead * PART, COLUMNS)
        _bring(raw + size.to(tl.int64) * width, across * COLUMNS, size, width, ahead * PART, COLUMNS)
    wait_for_last(OVERLAP)
    if STAY:
        for tile in tl.range(tl.program_id(0), tiles_down * tiles_across, tl.num_programs(0), flatten=True):
            down, across = _place(tile, tiles_down, tiles_across, GROUP)
            _gated_tile(
                x, weight, bias, out, rows, size, width, down, across, ROWS, COLUMNS, PART, GELU, BIAS, BULK, BULK, KIND, PRECISION
            )  # fmt: skip
    else:
        down, across = _place(tl.program_id(0), tiles_down, tiles_across, GROUP)
        _gated_tile(
            x, weight, bias, out, rows, size, width, down, across, ROWS, COLUMNS, PART, GELU, BIAS, BULK, False, KIND, PRECISION
        )  # fmt: skip


def gated(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str, blocks: Blocks, overlap: bool = False) -> Tensor:
    """activation(x times the weight's first half) · (x times its second half). `weight` is [2 · size, width]."""
    (rows, width), size = x.shape, len(weight) // 2
    out = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(rows, blocks.rows) * triton.cdiv(size, blocks.columns)
    programs = min(tiles, multiprocessors(x.device)) if blocks.stay else tiles
    target = TensorDescriptor.from_tensor(out, [blocks.rows, blocks.columns]) if blocks.stay and blocks.bulk else out
    _gated[(programs,)](
        _tiled(x, blocks.rows, blocks), _tiled(weight, blocks.columns, blocks), weight, x if bias is None else bias, target, rows, size,
        width, _ahead(blocks, width), ROWS=blocks.rows, COLUMNS=blocks.columns, PART=blocks.part, GROUP=blocks.group, GELU=kind != "silu",
        BIAS=bias is not None, BULK=blocks.bulk, STAY=blocks.stay, PRECISION=precision(x),
        OVERLAP=overlap, num_warps=blocks.warps, num_stages=blocks.stages, **launching(overlap),
    )  # fmt: skip
    return out


def fits(x: Tensor, weight: Any, blocks: Blocks) -> bool:
    """Whether these kernels take a product: plain rows of one dtype, an inner size of whole parts, and rows that begin at 16 bytes."""
    plain = x.dtype == weight.dtype and x.is_contiguous() and weight.is_contiguous() and len(weight) % 16 == 0
    return bool(plain and x.shape[1] % blocks.part == 0 and x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0)


def precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _ahead(blocks: Blocks, width: int) -> int:
    """How many parts are asked for before the last kernel has ended, if they overlap."""
    return min(blocks.ahead, width // blocks.part // blocks.split)


def _tiled(matrix: Tensor, height: int, blocks: Blocks) -> Any:
    return TensorDescriptor.from_tensor(matrix, [height, blocks.part]) if blocks.bulk else matrix
