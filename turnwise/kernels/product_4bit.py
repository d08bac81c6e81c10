"""Products of few rows with weights in bitsandbytes' 4 bits, in Triton: the codes are unpacked in registers and never written to memory.

A program multiplies a tile of output columns by all rows, over its share of the inner size. Codes are read as words of 32 bits, eight
codes each. Code number n of every word is unpacked for the whole tile and multiplied with every eighth number of the rows, from number n
on: so nothing has to be put back in order. The 16 values of a code lie in the SM's shared memory, in 16 different banks: looking
them up never collides. A value is multiplied by its block's scale in float32 and rounded once, as bitsandbytes does.

Scales may be codes themselves, of 8 bits (`quant_state.nested`). Those are read two steps ahead, their values one step ahead. If the inner
size is divided among programs, they write sums in float32, which another kernel adds up in their order. A bias is added to the rounded
product, as the library's users do.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from turnwise.kernels.gpu import sm_count
from turnwise.kernels.product_table import Blocks, packed_blocks

MERGED = 256  # numbers that a program adds up
KINDS = (torch.bfloat16, torch.float16)


@triton.jit
def _eighths(a):
    """Rows of numbers as eight: every eighth number, from the first on, from the second on, and so on."""
    even, odd = tl.split(tl.reshape(a, [a.shape[0], a.shape[1] // 8, 2, 2, 2]))
    even_0, even_2 = tl.split(even)
    odd_1, odd_3 = tl.split(odd)
    a0, a4 = tl.split(even_0)
    a2, a6 = tl.split(even_2)
    a1, a5 = tl.split(odd_1)
    a3, a7 = tl.split(odd_3)
    return a0, a1, a2, a3, a4, a5, a6, a7


@triton.jit
def _add(total, words, values, scale, x, NUMBER: tl.constexpr):
    """total + (code number NUMBER of every word, unpacked) times x. Of a byte, the first code is the upper half."""
    SIZE: tl.constexpr = words.shape[0] * words.shape[1]
    code = (words >> (NUMBER // 2 * 8 + 4 - NUMBER % 2 * 4)) & 15
    value = tl.reshape(tl.gather(values, tl.reshape(code, [SIZE]), 0), words.shape)
    return tl.dot((value * scale).to(x.dtype), tl.trans(x), total)


@triton.jit
def _scale(code, values, tops, offset, place, GROUP: tl.constexpr):
    """The scales at some places, of which `code` has been read. They are rounded twice: the kernel is compiled without fusion."""
    return tl.load(values + code.to(tl.int32)) * tl.load(tops + place // GROUP) + offset


@triton.jit
def _packed(
    x, codes, scales, table, scale_table, tops, offsets, bias, out, rows, size, width, first_out, total_out,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, NESTED: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    WORDS: tl.constexpr = PART // 8
    SPAN: tl.constexpr = min(BLOCK, PART)  # codes with one scale, within a part
    SCALES: tl.constexpr = PART // SPAN
    split, steps = tl.program_id(1), width // PART
    share = tl.cdiv(steps, tl.num_programs(1))
    begin = split * share
    end = tl.minimum(begin + share, steps)
    column, row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    inside, there = row < rows, tl.minimum(column, size - 1).to(tl.int64)
    values = tl.load(table + tl.arange(0, 16))
    word_at = codes + there[:, None] * (width // 8) + tl.arange(0, WORDS)[None, :]
    x_at = x + row[:, None] * width + tl.arange(0, PART)[None, :]
    block_of_column, code_of_block = there[:, None] * (width // BLOCK), tl.arange(0, SCALES)[None, :] * SPAN
    if NESTED:
        place = block_of_column + (begin * PART + code_of_block) // BLOCK
        scale = _scale(tl.load(scales + place), scale_table, tops, tl.load(offsets), place, GROUP)
        place = block_of_column + (tl.minimum(begin + 1, steps - 1) * PART + code_of_block) // BLOCK
        next_code = tl.load(scales + place)
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for step in range(begin, end):
        words = tl.load(word_at + step * WORDS)
        a = tl.load(x_at + step * PART, mask=inside[:, None], other=0.0)
        if NESTED:
            next_scale = _scale(next_code, scale_table, tops, tl.load(offsets), place, GROUP)
            place = block_of_column + (tl.minimum(step + 2, steps - 1) * PART + code_of_block) // BLOCK
            next_code = tl.load(scales + place)
        else:
            scale = tl.load(scales + block_of_column + (step * PART + code_of_block) // BLOCK)
        each = tl.reshape(tl.broadcast_to(scale[:, :, None], [COLUMNS, SCALES, SPAN // 8]), [COLUMNS, WORDS])
        a0, a1, a2, a3, a4, a5, a6, a7 = _eighths(a)
        total = _add(total, words, values, each, a0, 0)
        total = _add(total, words, values, each, a1, 1)
        total = _add(total, words, values, each, a2, 2)
        total = _add(total, words, values, each, a3, 3)
        total = _add(total, words, values, each, a4, 4)
        total = _add(total, words, values, each, a5, 5)
        total = _add(total, words, values, each, a6, 6)
        total = _add(total, words, values, each, a7, 7)
        if NESTED:
            scale = next_scale
    found = total.to(out.dtype.element_ty)
    if BIAS:
        found = (found.to(tl.float32) + tl.load(bias + there).to(tl.float32)[:, None]).to(out.dtype.element_ty)
    target = out + (split * rows + row).to(tl.int64)[None, :] * total_out + first_out + column[:, None]
    tl.store(target, found, mask=inside[None, :] & (column < size)[:, None])


@triton.jit
def _merge(parts, bias, out, rows, size, PARTS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    total = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts + (part * rows + row) * size + column, mask=inside, other=0.0)
    found = total.to(out.dtype.element_ty)
    if BIAS:
        found = (found.to(tl.float32) + tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)).to(out.dtype.element_ty)
    tl.store(out + row * size + column, found, mask=inside)


_refused: set[tuple[torch.device, Blocks]] = set()  # what a GPU did not compile


def packed_product(x: Tensor, weights: Sequence[Any], bias: Tensor | None) -> Tensor | None:
    """The rows of x times packed weights, one after another, plus the bias: [rows, all their sizes]. None if this kernel does not take
    them, or cannot be compiled for this GPU, which is said once."""
    if not all(fits(x, weight) for weight in weights):
        return None
    generation = torch.cuda.get_device_capability(x.device)[0] if x.is_cuda else 9
    largest = max(weight.quant_state.shape[0] for weight in weights)
    blocks = packed_blocks(len(x), x.shape[1], largest, sm_count(x.device), generation)
    if blocks is None or (x.device, kind := blocks._replace(split=1)) in _refused:
        return None
    try:
        return multiply(x, weights, bias, blocks)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever Triton raises for a GPU that it cannot serve
        _refused.add((x.device, kind))
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        warnings.warn(
            f"the kernel for weights in 4 bits does not run on {x.device}, bitsandbytes multiplies instead: {reason}", stacklevel=2
        )
        return None


def multiply(x: Tensor, weights: Sequence[Any], bias: Tensor | None, blocks: Blocks) -> Tensor:
    """As `packed_product`, in these blocks."""
    (rows, width), sizes = x.shape, [weight.quant_state.shape[0] for weight in weights]
    every, parts = sum(sizes), blocks.split > 1
    out = x.new_empty(rows, every)
    target = torch.empty(blocks.split, rows, every, dtype=torch.float32, device=x.device) if parts else out
    for place, weight in enumerate(weights):
        state, first = weight.quant_state, sum(sizes[:place])
        inner = state.state2 if state.nested else None
        own = None if bias is None or parts else bias[first : first + sizes[place]]
        _packed[(triton.cdiv(sizes[place], blocks.columns), blocks.split)](
            x, weight.data.view(-1).view(torch.int32), state.absmax, state.code,
            *((inner.code, inner.absmax, state.offset) if inner is not None else [x] * 3),
            x if own is None else own, target, rows, sizes[place], width, first, every,
            ROWS=blocks.rows, COLUMNS=blocks.columns, PART=blocks.part, BLOCK=state.blocksize,
            GROUP=1 if inner is None else inner.blocksize, NESTED=inner is not None, BIAS=own is not None,
            num_warps=blocks.warps, num_stages=blocks.stages, enable_fp_fusion=False,
        )  # fmt: skip
    if parts:
        _merge[(rows, triton.cdiv(every, MERGED))](
            target, x if bias is None else bias, out, rows, every, PARTS=blocks.split, BIAS=bias is not None, BLOCK=MERGED, num_warps=2
        )
    return out


def fits(x: Tensor, weight: Any) -> bool:
    """Whether the kernel reads this weight: two codes to a byte in rows of whole blocks, all tables in float32, and nothing unaligned."""
    state, codes = weight.quant_state, weight.data
    size, width = state.shape
    scales = [state.absmax, state.code]
    if state.nested:
        scales = [state.state2.absmax, state.state2.code, state.code]
    plain = x.dim() == 2 and x.dtype in KINDS and x.dtype == state.dtype and x.shape[1] == width and x.is_contiguous()
    known = all(scale.dtype == torch.float32 for scale in scales) and (not state.nested or state.absmax.dtype == torch.uint8)
    whole = width % state.blocksize == 0 and codes.is_contiguous() and codes.numel() * codes.element_size() * 2 == size * width
    return bool(plain and known and whole and x.data_ptr() % 16 == 0 and codes.data_ptr() % 16 == 0)
