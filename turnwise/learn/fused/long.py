"""Attention inside long sequences, through cuDNN's kernel: it is twice as fast as the flash kernel there, but takes equal lengths only, and
builds a plan for each new number of sequences and length.

So lengths are rounded up. Neighbours of nearly the same length are one call, which keeps the whole GPU busy until the end of the last one;
their rows are copied to equal distances for it, and the rows of the result back. A sequence alone is read where it is: the rows beyond its
end belong to its neighbour. Causality excludes rows beyond an end from the forward pass, and a gradient of zeros excludes them from the
backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from turnwise.learn.sending import sent

if TYPE_CHECKING:
    from turnwise.learn.fused.attention import Frame

LONG = 2048  # tokens at which a single sequence fills a GPU
GRAIN = 256  # lengths are rounded up to this
TOGETHER = 4  # sequences of one call at most: there is a plan for each number
WASTE = 1.04  # operations of sequences in one call, compared with those of a call each


@dataclass(frozen=True)
class Group:
    """Neighbours of one call, from token `start` to `end`. `wide`: which token is at which place of the padded rows; `back`: where the
    tokens are in those. None: a single sequence."""

    start: int
    end: int
    lengths: tuple[int, ...]
    wide: Tensor | None = None
    back: Tensor | None = None

    @property
    def padded(self) -> int:
        """The length that all have in the call."""
        return rounded(max(self.lengths))


def rounded(length: int) -> int:
    return -(-length // GRAIN) * GRAIN


def grouped(start: int, lengths: Sequence[int], device: torch.device, together: bool) -> list[Group]:
    """Calls for neighbours that begin at this token. `together`: several may be one call."""
    found: list[Group] = []
    left = list(lengths)
    while left:
        count = _fitting(left) if together else 1
        own, left = left[:count], left[count:]
        found.append(Group(start, start + sum(own), tuple(own), *(places(own, device) if count > 1 else ())))
        start += sum(own)
    return found


def _fitting(lengths: Sequence[int]) -> int:
    """How many of the first can be one call without much work that nobody needs."""
    best = 1
    for count in range(2, min(TOGETHER, len(lengths)) + 1):
        sizes = [rounded(length) for length in lengths[:count]]
        if count * max(sizes) ** 2 <= WASTE * sum(size**2 for size in sizes):
            best = count
    return best


def places(lengths: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """For each padded row the token that is put there (beyond an end: the last one), and for each token its padded row."""
    padded, starts = rounded(max(lengths)), np.cumsum([0, *lengths[:-1]])
    row = np.arange(padded)
    wide = np.concatenate([start + np.minimum(row, length - 1) for start, length in zip(starts, lengths, strict=True)])
    back = np.concatenate([number * padded + row[:length] for number, length in enumerate(lengths)])
    return sent(wide, device), sent(back, device)


def attend(qkv: Tensor, group: Group, frame: Frame) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What every token of the group reads, [tokens, heads, size], and what else the backward pass needs."""
    out, normaliser, seed, offset = cudnn(_rows(qkv, group, frame), frame.scale)
    return _tokens(out, group), normaliser, seed, offset


def attend_backward(grad: Tensor, qkv: Tensor, out: Tensor, state: Sequence[Tensor], group: Group, frame: Frame) -> tuple[Tensor, ...]:
    """Gradients of queries, keys and values, [tokens, heads, size] each. `grad` and `out` are the group's."""
    slope, wide = _padded(grad, group, zeros=True), _padded(out, group, zeros=group.wide is None)
    return tuple(_tokens(found, group) for found in cudnn_backward(slope, _rows(qkv, group, frame), wide, state, frame.scale))


def _rows(qkv: Tensor, group: Group, frame: Frame) -> list[Tensor]:
    """Queries, keys and values, [sequences, heads, padded length, size] each."""
    if group.wide is not None:
        part = qkv[group.start : group.end].index_select(0, group.wide)
    else:  # and what follows it
        end = group.start + group.padded
        part = qkv[group.start : end]
        if end > len(qkv):
            part = torch.cat([part, part.new_zeros(end - len(qkv), part.shape[1])])
    return [x.unflatten(0, (len(group.lengths), group.padded)).transpose(1, 2) for x in frame.cut(part)]


def _padded(x: Tensor, group: Group, zeros: bool) -> Tensor:
    """Rows of tokens, [tokens, heads, size], as a call takes them; `zeros`: with 0 beyond the end of each sequence."""
    length, count = group.padded, len(group.lengths)
    if group.wide is None:
        found = x.new_zeros(length, *x.shape[1:])
        found[: len(x)] = x
    else:
        found = x.index_select(0, group.wide)
        for number, own in enumerate(group.lengths if zeros else ()):
            found[number * length + own : (number + 1) * length] = 0
    return found.unflatten(0, (count, length)).transpose(1, 2)


def _tokens(x: Tensor, group: Group) -> Tensor:
    """The rows of the group's tokens from those of a call."""
    found = x.transpose(1, 2).flatten(0, 1)
    return found[: group.lengths[0]] if group.back is None else found.index_select(0, group.back)


def cudnn(rows: Sequence[Tensor], scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Causal attention of sequences of equal length, and what its backward pass needs."""
    out, normaliser, *_, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *rows, None, True, 0.0, True, False, scale=scale
    )
    return out, normaliser, seed, offset


def cudnn_backward(slope: Tensor, rows: Sequence[Tensor], out: Tensor, state: Sequence[Tensor], scale: float) -> Any:
    """Gradients of queries, keys and values."""
    normaliser, seed, offset = state
    length = rows[0].shape[2]
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        slope, *rows, out, normaliser, seed, offset, None, None, None, length, length, 0.0, True, scale=scale
    )
