"""Attention inside long sequences, through cuDNN's kernel: it is twice as fast as the flash kernel there, but takes equal lengths only, and
builds a plan for each new number of sequences and length.

So lengths are rounded up, and neighbours of nearly the same length are one call, which keeps the whole GPU busy until the end of the last
one. Their rows are at equal distances (`Wide`): the rotation puts them there, and its gradient reads them from there, so that nothing is
copied for it. Causality excludes rows beyond an end from the forward pass, and a gradient of zeros excludes them from the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
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
    """Neighbours of one call, from row `start` to `end`, each with as many rows as the longest needs."""

    start: int
    end: int
    lengths: tuple[int, ...]

    @property
    def padded(self) -> int:
        """The length that all have in the call."""
        return (self.end - self.start) // len(self.lengths)

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The token of each row, counted from the group's first; beyond an end it is the last one."""
        row, starts = np.arange(self.padded), np.cumsum([0, *self.lengths[:-1]])
        return np.concatenate([start + np.minimum(row, length - 1) for start, length in zip(starts, self.lengths, strict=True)])

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each token."""
        return np.concatenate([self.start + number * self.padded + np.arange(length) for number, length in enumerate(self.lengths)])


@dataclass(frozen=True)
class Wide:
    """Rows of all calls, with unused ones between sequences. `tokens`: the token of each row, or the one before it; `rows`: the row of
    each token."""

    tokens: Tensor
    rows: Tensor

    @classmethod
    def of(cls, runs: Sequence[Any], device: torch.device) -> Wide | None:
        """The rows of these calls; None if every token is at its own place."""
        if not any(isinstance(run, Group) for run in runs):
            return None
        tokens, rows, first = [], [], 0
        for run in runs:
            inside = run.tokens if isinstance(run, Group) else np.arange(run.end - run.start)
            tokens.append(first + inside)
            rows.append(run.rows if isinstance(run, Group) else run.start + inside)
            first += len(rows[-1])
        return cls(sent(np.concatenate(tokens), device), sent(np.concatenate(rows), device))


def rounded(length: int) -> int:
    return -(-length // GRAIN) * GRAIN


def grouped(start: int, lengths: Sequence[int], together: bool) -> list[Group]:
    """Calls for neighbours that begin at this row. `together`: several may be one call."""
    found: list[Group] = []
    left = list(lengths)
    while left:
        count = _fitting(left) if together else 1
        own, left = left[:count], left[count:]
        found.append(Group(start, start + count * rounded(max(own)), tuple(own)))
        start = found[-1].end
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
