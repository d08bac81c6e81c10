"""Keys and values in 8 bits: integers from -127 to 127, with one scale for every token and head.

Integers and not an 8-bit float: with a scale of its own, a head's largest number fills the range, and then the error of 3 bits of mantissa
is about four times as large. Integers also work on GPUs that know no 8-bit floats, and on a CPU.

One large number per head would take the steps from all others, and keys have such numbers: their bias, in models that have one. So keys
are stored relative to it, rotated as it is at their position (`Weights.shift_keys`). It is known, so nothing is lost.

A page's block of one head holds the integers of all its tokens, then their scales. So a page is still one piece of memory: it is copied,
shared and given back as any other. In a cache of shape [..., pages, heads, tokens, size + 4] the last two dimensions are such a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.util.errors import TurnwiseError

KINDS = ("model", "8bit")
LARGEST = 127
SCALE = 4  # bytes of a scale


def stored(kind: str, dtype: torch.dtype, size: int) -> tuple[torch.dtype, int]:
    """What a cache of this kind is made of, for heads of `size` numbers of `dtype`: its dtype, and numbers per token and head."""
    if kind not in KINDS:
        raise TurnwiseError(f"engine: cache_dtype is one of {', '.join(KINDS)}, not {kind!r}")
    if kind == "model":
        return dtype, size
    if size % SCALE:
        raise TurnwiseError(f'engine: cache_dtype = "8bit" needs heads whose size divides by {SCALE}, and these have {size} numbers')
    return torch.int8, size + SCALE


def pack(x: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors [..., size] as integers and scales [...]. What is not a number stays none, in the scale."""
    exact = x.float()
    most = exact.abs().amax(-1)
    inverse = torch.where(most > 0, LARGEST / most, 0.0)
    numbers = torch.nan_to_num(exact * inverse[..., None] + 0.5).floor().clamp(-LARGEST, LARGEST).to(torch.int8)
    return numbers, most / LARGEST + (exact * 0.0).sum(-1)


@dataclass(frozen=True, slots=True)
class Packed:
    """Keys or values in 8 bits: `numbers` [pages, heads, tokens, size] and `scales` [pages, heads, tokens], views of one cache. `shift`
    [tokens, heads, size] is what they are relative to, if a page is a whole sequence."""

    numbers: Tensor
    scales: Tensor
    dtype: torch.dtype
    shift: Tensor | None = None

    def part(self, pages: slice | int | Tensor, seen: slice) -> Tensor:
        """What pages hold of these tokens, as they are computed with: [pages, heads, tokens, size]."""
        found = self.numbers[pages, ..., seen, :] * self.scales[pages, ..., seen, None]
        if self.shift is not None:
            found += self.shift[seen].transpose(0, 1)
        return found.to(self.dtype)

    def put(self, pages: Tensor, places: Tensor, x: Tensor) -> None:
        """Vectors [tokens, heads, size] into pages, one each, at these places."""
        relative = x if self.shift is None else x.float() - self.shift[places].float()
        self.numbers[pages, :, places], self.scales[pages, :, places] = pack(relative)


def views(cache: Tensor, dtype: torch.dtype, shift: Tensor | None = None) -> tuple[Packed, Packed]:
    """Keys and values of one layer's cache in 8 bits, [2, pages, heads, tokens, size + 4]. `shift`: what keys are relative to."""
    *_, tokens, width = cache.shape
    size = width - SCALE
    blocks = cache.flatten(-2)
    numbers = blocks[..., : tokens * size].unflatten(-1, (tokens, size))
    scales = blocks[..., tokens * size :].view(torch.float32)
    return Packed(numbers[0], scales[0], dtype, shift), Packed(numbers[1], scales[1], dtype)


def copy_beginning(cache: Tensor, source: int, target: int, tokens: int) -> None:
    """The first tokens of a page into another one, in all layers of a cache [layers, 2, pages, heads, tokens, numbers]."""
    if cache.dtype != torch.int8:
        cache[:, :, target, :, :tokens] = cache[:, :, source, :, :tokens]
        return
    *_, page, width = cache.shape
    blocks, size = cache.flatten(-2), width - SCALE
    for seen in (slice(0, tokens * size), slice(page * size, page * size + tokens * SCALE)):
        blocks[:, :, target, :, seen] = blocks[:, :, source, :, seen]
