"""Attention inside long sequences, through cuDNN's kernel: it is twice as fast as the flash kernel there, but takes equal lengths only, and
builds a plan for each new number of sequences and length.

So lengths are rounded up, and sequences of nearly the same length are one call, which keeps the whole GPU busy until the end of the last
one. Their rows are at equal distances (`Wide`): the rotation puts them there, and its gradient reads them from there, so that nothing is
copied for it. Causality excludes rows beyond an end from the forward pass, and a gradient of zeros excludes them from the backward pass.
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
    """Sequences of one call, from row `start` to `end`, each with as many rows as the longest needs. `sequences` are their numbers."""

    start: int
    end: int
    lengths: tuple[int, ...]
    sequences: tuple[int, ...]

    @property
    def padded(self) -> int:
        """The length that all have in the call."""
        return (self.end - self.start) // len(self.lengths)


@dataclass(frozen=True)
class Wide:
    """Rows of all calls, with unused ones between sequences. `tokens`: the token of each row; beyond an end it is the last one. `rows`: the
    row of each token."""

    tokens: Tensor
    rows: Tensor

    @classmethod
    def of(cls, runs: Sequence[Any], lengths: Sequence[int], device: torch.device) -> Wide | None:
        """The rows of these calls for sequences of these lengths; None if every token is at its own place."""
        if not any(isinstance(run, Group) for run in runs):
            return None
        starts, tokens, rows = np.cumsum([0, *lengths]), [], np.zeros(sum(lengths), np.int64)
        for run in runs:
            place = run.start
            for number in run.sequences:
                length = run.padded if isinstance(run, Group) else lengths[number]
                tokens.append(starts[number] + np.minimum(np.arange(length), lengths[number] - 1))
                rows[starts[number] : starts[number + 1]] = place + np.arange(lengths[number])
                place += length
        return cls(sent(np.concatenate(tokens), device), sent(rows, device))


def rounded(length: int) -> int:
    return -(-length // GRAIN) * GRAIN


def grouped(start: int, lengths: Sequence[int], sequences: Sequence[int], together: bool) -> list[Group]:
    """Calls for sequences with these lengths and numbers, beginning at this row: the longest first, so that those of nearly the same length
    are neighbours. `together`: several may be one call."""
    found: list[Group] = []
    left = sorted(zip(lengths, sequences, strict=True), key=lambda own: -own[0])
    while left:
        count = _fitting([length for length, _ in left]) if together else 1
        sizes, numbers = zip(*left[:count], strict=True)
        found.append(Group(start, start + count * rounded(max(sizes)), sizes, numbers))
        start, left = found[-1].end, left[count:]
    return found


def _fitting(lengths: Sequence[int]) -> int:
    """How many of the first can be one call without much work that nobody needs."""
    best = 1
    for count in range(2, min(TOGETHER, len(lengths)) + 1):
        sizes = [rounded(length) for length in lengths[:count]]
        if count * max(sizes) ** 2 <= WASTE * sum(size**2 for size in sizes):
            best = count
    return best


def attend(qkv: Tensor, group: Group, frame: Frame) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What every row of the group reads, [rows, heads, size], and what else the backward pass needs."""
    out, normaliser, seed, offset = cudnn(_calls(frame.cut(qkv[group.start : group.end]), group), frame.scale)
    return _rows(out), normaliser, seed, offset


def attend_backward(grad: Tensor, qkv: Tensor, out: Tensor, state: Sequence[Tensor], group: Group, frame: Frame) -> tuple[Tensor, ...]:
    """Gradients of queries, keys and values, [rows, heads, size] each. `grad` and `out` are the group's; `grad` is 0 beyond ends."""
    slope, wide = _calls((grad, out), group)
    rows = _calls(frame.cut(qkv[group.start : group.end]), group)
    return tuple(_rows(found) for found in cudnn_backward(slope, rows, wide, state, frame.scale))


def _calls(parts: Sequence[Tensor], group: Group) -> list[Tensor]:
    """Rows, [rows, heads, size], as a call takes them: [sequences, heads, padded length, size]."""
    return [x.unflatten(0, (len(group.lengths), group.padded)).transpose(1, 2) for x in parts]


def _rows(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(0, 1)


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
