"""AdamW's moments in 8 bits.

A moment is cut along its last axis into blocks of 128 numbers. A block stores its largest magnitude in float32, and every number as one
byte: its magnitude relative to the largest, on a logarithmic scale of eight codes per power of two. The first moment needs one bit for the
sign, which leaves a range of 2**16; the second is never negative and has a range of 2**32. Both ranges fit each other, because the update
divides by the square root of the second moment.

Rounding is random and right on average. With rounding to the nearest code a slow average would never move: a step changes the second
moment by a thousandth, and two codes are nine hundredths apart. The random numbers depend on the step and the weight's name only. A second
moment that is not zero never becomes zero, because the update divides by it.

The result is 2.06 bytes per weight instead of 8. Norms, biases and small tensors stay float32.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 128  # numbers that share a scale
FEWEST = 4096  # smaller tensors stay float32
STEPS = 8  # codes per power of two
SIGN = 128


def packable(weight: Tensor) -> bool:
    """Whether a weight's moments are stored in 8 bits."""
    return bool(weight.dim() > 1 and weight.numel() >= FEWEST)


def blocks_of(weight: Tensor) -> int:
    """The number of blocks of a row."""
    return -(-int(weight.shape[-1]) // BLOCK)


def moment_bytes(weight: Tensor) -> int:
    """The bytes of both moments of a weight in this form."""
    count, size = int(weight.numel()), int(weight.shape[-1]) if weight.dim() else 1
    return 2 * (count + 4 * (count // size) * blocks_of(weight)) if packable(weight) else 8 * count


def pack(values: Tensor, codes: Tensor, scales: Tensor, signed: bool, random: torch.Generator) -> None:
    """Store numbers, [rows, size], as codes (uint8) of the same shape and scales, [rows, blocks]."""
    rows, size = values.shape
    blocked = pad(values, (0, -size % BLOCK)).view(rows, -1, BLOCK)
    magnitude = blocked.abs()
    largest = magnitude.amax(-1, keepdim=True)
    share = magnitude / torch.where(largest > 0, largest, 1.0)
    top = SIGN - 1 if signed else 255
    levels = _levels(top, values.device)
    low = (torch.log2(share) * STEPS + top).floor_().clamp_(0, top).to(torch.int32)
    below, above = levels[low], levels[(low + 1).clamp_(max=top)]
    chance = (share - below) / torch.where(above > below, above - below, 1.0)
    drawn = torch.rand(share.shape, generator=random, device=share.device)
    low += drawn < chance
    if signed:
        low += SIGN * (blocked < 0)
    else:
        low = torch.maximum(low, (blocked > 0).to(torch.int32))
    codes.copy_(low.view(rows, -1)[:, :size])
    scales.copy_(largest[..., 0])


def unpack(codes: Tensor, scales: Tensor, signed: bool) -> Tensor:
    """The numbers, [rows, size], float32."""
    rows, size = codes.shape
    number = codes.to(torch.int32)
    top = SIGN - 1 if signed else 255
    values = _levels(top, codes.device)[number & top]
    if signed:
        values = torch.where(number >= SIGN, -values, values)
    return (pad(values, (0, -size % BLOCK)).view(rows, -1, BLOCK) * scales[..., None]).view(rows, -1)[:, :size].contiguous()


@lru_cache(maxsize=8)
def _levels(top: int, device: torch.device) -> Tensor:
    """What the codes 0 to `top` stand for, as a share of the largest: 0 for code 0, 1 for the last."""
    levels = torch.exp2((torch.arange(top + 1, dtype=torch.float64) - top) / STEPS)
    levels[0] = 0.0
    return levels.float().to(device)
