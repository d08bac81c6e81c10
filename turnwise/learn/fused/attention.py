"""Causal attention inside each sequence of a packed row, and its gradient.

On a GPU queries, keys and values are read where the matrix product put them, and several query heads read one key head in place. Short
sequences are one call of torch's variable-length flash kernel. Layers with a sliding window use that kernel for all lengths beyond it. On a
CPU: one sequence after another, and if only some tokens are wanted of the last layer, only their queries.

Long sequences go through cuDNN's kernel: it is twice as fast as the flash kernel there, but takes equal lengths only, and builds a plan for
each new number of sequences and length. So lengths are rounded up, and sequences of nearly the same length are one call, which keeps the
whole GPU busy until the end of the last one. Their rows are at equal distances (`PaddedRows`): the rotation puts them there, and its
gradient reads them from there, so that nothing is copied for it. Causality excludes rows beyond an end from the forward pass, and a
gradient of zeros excludes them from the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnwise.learn.device import to_device

LONG = 2048  # tokens at which a single sequence fills a GPU
GRAIN = 256  # lengths are rounded up to this
TOGETHER = 4  # sequences of one call at most: there is a plan for each number
WASTE = 1.04  # operations of sequences in one call, compared with those of a call each


@dataclass(frozen=True)
class CudnnCall:
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
class PaddedRows:
    """Rows of all calls, with unused ones between sequences. `tokens`: the token of each row; beyond an end it is the last one. `rows`: the
    row of each token."""

    tokens: Tensor
    rows: Tensor

    @classmethod
    def of(cls, runs: Sequence[Any], lengths: Sequence[int], device: torch.device) -> PaddedRows | None:
        """The rows of these calls for sequences of these lengths; None if every token is at its own place."""
        if not any(isinstance(run, CudnnCall) for run in runs):
            return None
        starts, tokens, rows = np.cumsum([0, *lengths]), [], np.zeros(sum(lengths), np.int64)
        for run in runs:
            place = run.start
            for number in run.sequences:
                length = run.padded if isinstance(run, CudnnCall) else lengths[number]
                tokens.append(starts[number] + np.minimum(np.arange(length), lengths[number] - 1))
                rows[starts[number] : starts[number + 1]] = place + np.arange(lengths[number])
                place += length
        return cls(to_device(np.concatenate(tokens), device), to_device(rows, device))


@dataclass(frozen=True)
class FlashCall:
    """Short sequences that are one call, from row `start` to `end`, with their offsets in the run. `sequences` are their numbers."""

    start: int
    end: int
    offsets: Tensor
    longest: int
    sequences: tuple[int, ...]


Run = FlashCall | CudnnCall


@dataclass(frozen=True)
class OneSequence:
    """One sequence: the rows of its tokens, those of the queries that read, and what each of them sees (None: all up to itself)."""

    tokens: slice
    queries: slice
    mask: Tensor | None


@dataclass(frozen=True)
class Frame:
    """What all layers share: the offsets of sequences in the row, the position of each token in its sequence, the rotations, and the
    heads."""

    lengths: list[int]
    offsets: Tensor  # int32: where sequences start, one more entry than sequences
    positions: Tensor  # int64: each token's position in its sequence
    cos: Sequence[Tensor]  # one entry per rotation of the model
    sin: Sequence[Tensor]
    heads: int
    kv_heads: int
    size: int
    eps: float
    runs: list[Run] = field(default_factory=list)  # empty: one sequence after another
    scaling: float | None = None  # of the products of queries and keys; None: 1 / √size
    wide: PaddedRows | None = None  # where runs have their rows; None: every token is at its own place
    apart: dict[tuple[int, bool], list[OneSequence]] = field(default_factory=dict)  # by window, and whether only some tokens read

    def __post_init__(self) -> None:
        self.runs.extend(_runs(self))
        object.__setattr__(self, "wide", PaddedRows.of(self.runs, self.lengths, self.offsets.device))

    @property
    def scale(self) -> float:
        """The scale of the products of queries and keys."""
        scale: float = self.size**-0.5 if self.scaling is None else self.scaling
        return scale

    def runs_for(self, window: int) -> list[Run]:
        """The calls of a layer: a window that is shorter than a sequence needs the kernel that knows windows."""
        if not self.runs or not self.narrows(window):
            return self.runs
        return [FlashCall(0, sum(self.lengths), self.offsets, max(self.lengths), tuple(range(len(self.lengths))))]

    def padded_for(self, window: int) -> PaddedRows | None:
        """Where the calls of a layer have their rows."""
        return None if self.narrows(window) else self.wide

    def narrows(self, window: int) -> bool:
        """Whether a window (0: none) hides anything."""
        return 0 < window < max(self.lengths)

    def cut(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [tokens, heads, size] each, as views."""
        queries, keys, values = qkv.view(len(qkv), -1, self.size).split([self.heads, self.kv_heads, self.kv_heads], 1)
        return queries, keys, values


def runs_of(frame: Frame, fast: bool, together: bool) -> list[Run]:
    """The calls of a layer: all short sequences are one. `fast`: long ones have their own kernel; `together`: which takes several."""
    numbers = range(len(frame.lengths))
    short = tuple(number for number in numbers if not fast or frame.lengths[number] < LONG)
    found: list[Run] = []
    if short:
        lengths, whole = [frame.lengths[number] for number in short], len(short) == len(frame.lengths)
        offsets = frame.offsets if whole else to_device([0, *accumulate(lengths)], frame.offsets.device, torch.int32)
        found.append(FlashCall(0, sum(lengths), offsets, max(lengths), short))
    rest = [number for number in numbers if number not in set(short)]
    return found + grouped(found[-1].end if found else 0, [frame.lengths[number] for number in rest], rest, together)


def _runs(frame: Frame) -> list[Run]:
    if not frame.offsets.is_cuda:
        return []
    heads = frame.heads, frame.kv_heads, frame.size
    fast = max(frame.lengths) >= LONG and cudnn_is_right(*heads, (300,))
    return runs_of(frame, fast, fast and cudnn_is_right(*heads, (300, 290)))


def attend(qkv: Tensor, frame: Frame, window: int = 0, places: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What every row reads, [rows, heads × size], and what else the backward pass needs. Rows are those of the calls (`Frame.padded_for`).
    `window`: how many tokens are seen; 0: all. `places`: without calls of several sequences, only these tokens read."""
    runs = frame.runs_for(window)
    if not runs:
        return _apart(qkv, frame, window, places)
    outputs, state = [], []
    for run in runs:
        out, *more = _long(qkv, run, frame) if isinstance(run, CudnnCall) else _short(qkv, run, frame, window)
        outputs.append(out)
        state += more
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).flatten(1), tuple(state)


def attend_backward(
    grad: Tensor, qkv: Tensor, out: Tensor, state: Sequence[Tensor], frame: Frame, window: int = 0, places: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, [rows, heads, size] each. `grad` is 0 in rows that no token has."""
    grad, out = (x.view(len(x), frame.heads, frame.size) for x in (grad, out))
    left, found, runs = list(state), [], frame.runs_for(window)
    if not runs:
        return _apart_backward(grad, qkv, out, state, frame, window, places)
    for run in runs:
        rows = slice(run.start, run.end)
        if isinstance(run, CudnnCall):
            found.append(_long_backward(grad[rows], qkv, out[rows], left[:3], run, frame))
            left = left[3:]
        else:
            found.append(_short_backward(grad[rows], qkv, out[rows], left.pop(0), run, frame, window))
    d_q, d_k, d_v = found[0] if len(found) == 1 else (torch.cat(column) for column in zip(*found, strict=True))
    return d_q, d_k, d_v


# Short sequences: one call for all of a run.


def _short(qkv: Tensor, run: FlashCall, frame: Frame, window: int = 0) -> tuple[Tensor, Tensor]:
    q, k, v = frame.cut(qkv[run.start : run.end])
    out, normaliser, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, run.offsets, run.offsets, run.longest, run.longest, 0.0, True, False, scale=frame.scale, **_sides(window)
    )
    return out, normaliser


def _sides(window: int) -> dict[str, int]:
    """How far a token sees to both sides, for the flash kernel."""
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}


def _short_backward(grad: Tensor, qkv: Tensor, out: Tensor, normaliser: Tensor, run: FlashCall, frame: Frame, window: int = 0) -> Any:
    q, k, v = frame.cut(qkv[run.start : run.end])
    no_chance, nothing = _no_dropout(qkv.device)
    seams = run.offsets, run.offsets, run.longest, run.longest
    return torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, normaliser, *seams, 0.0, True, no_chance, nothing, scale=frame.scale, **_sides(window)
    )


@lru_cache
def _no_dropout(device: torch.device) -> tuple[Tensor, Tensor]:
    """The random state of a dropout that there is not to repeat."""
    return torch.zeros(2, dtype=torch.uint64, device=device), torch.empty(0, device=device)


@lru_cache
def cudnn_is_right(heads: int, kv_heads: int, size: int, lengths: tuple[int, ...]) -> bool:
    """Whether cuDNN's kernel runs here for such heads and for sequences of these lengths in one call, and gives what the flash kernel
    gives, forward and backward."""
    total, device = sum(lengths), torch.device("cuda")
    frame = Frame(list(lengths), torch.empty(0), torch.empty(0), (), (), heads, kv_heads, size, 1e-6)
    generator = torch.Generator("cuda").manual_seed(0)
    qkv, grad = (torch.randn(total, n * size, generator=generator, device=device).bfloat16() for n in (heads + 2 * kv_heads, heads))
    numbers = tuple(range(len(lengths)))
    run = FlashCall(0, total, torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device), max(lengths), numbers)
    group = CudnnCall(0, len(lengths) * _rounded(max(lengths)), lengths, numbers)
    wide = PaddedRows.of([group], lengths, device)
    assert wide is not None
    slope = grad.view(total, heads, size)
    try:
        out, normaliser = _short(qkv, run, frame)
        rows = qkv[wide.tokens]
        other, *state = _long(rows, group, frame)
        wanted = [out, *_short_backward(slope, qkv, out, normaliser, run, frame)]
        padded = slope.new_zeros(len(rows), heads, size).index_copy_(0, wide.rows, slope)
        found = [other, *_long_backward(padded, rows, other, state, group, frame)]
        return all(bool((one[wide.rows] - two).norm() <= 0.02 * two.norm()) for one, two in zip(found, wanted, strict=True))
    except RuntimeError:  # no plan for such heads, or no cuDNN
        return False


# Long sequences: cuDNN's kernel, one call for some of nearly equal length.


def _rounded(length: int) -> int:
    return -(-length // GRAIN) * GRAIN


def grouped(start: int, lengths: Sequence[int], sequences: Sequence[int], together: bool) -> list[CudnnCall]:
    """Calls for sequences with these lengths and numbers, beginning at this row: the longest first, so that those of nearly the same length
    are neighbours. `together`: several may be one call."""
    found: list[CudnnCall] = []
    left = sorted(zip(lengths, sequences, strict=True), key=lambda own: -own[0])
    while left:
        count = _fitting([length for length, _ in left]) if together else 1
        sizes, numbers = zip(*left[:count], strict=True)
        found.append(CudnnCall(start, start + count * _rounded(max(sizes)), sizes, numbers))
        start, left = found[-1].end, left[count:]
    return found


def _fitting(lengths: Sequence[int]) -> int:
    """How many of the first can be one call without much work that nobody needs."""
    best = 1
    for count in range(2, min(TOGETHER, len(lengths)) + 1):
        sizes = [_rounded(length) for length in lengths[:count]]
        if count * max(sizes) ** 2 <= WASTE * sum(size**2 for size in sizes):
            best = count
    return best


def _long(qkv: Tensor, group: CudnnCall, frame: Frame) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What every row of the group reads, [rows, heads, size], and what else the backward pass needs."""
    out, normaliser, seed, offset = cudnn(_calls(frame.cut(qkv[group.start : group.end]), group), frame.scale)
    return _rows(out), normaliser, seed, offset


def _long_backward(grad: Tensor, qkv: Tensor, out: Tensor, state: Sequence[Tensor], group: CudnnCall, frame: Frame) -> tuple[Tensor, ...]:
    """Gradients of queries, keys and values, [rows, heads, size] each. `grad` and `out` are the group's; `grad` is 0 beyond ends."""
    slope, wide = _calls((grad, out), group)
    rows = _calls(frame.cut(qkv[group.start : group.end]), group)
    return tuple(_rows(found) for found in cudnn_backward(slope, rows, wide, state, frame.scale))


def _calls(parts: Sequence[Tensor], group: CudnnCall) -> list[Tensor]:
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


# On a CPU: one sequence after another.


def _sequences(frame: Frame, dtype: torch.dtype, window: int, places: Tensor | None) -> list[OneSequence]:
    """The sequences in which anything reads. Queries are the tokens at `places`, or all. All layers have the same `places`, if any."""
    kind = window if frame.narrows(window) else 0, places is not None
    if kind not in frame.apart:
        frame.apart[kind] = _cut(frame, dtype, kind[0], places)
    return frame.apart[kind]


def _cut(frame: Frame, dtype: torch.dtype, window: int, places: Tensor | None) -> list[OneSequence]:
    ends = [0, *accumulate(frame.lengths)]
    borders = ends if places is None else torch.searchsorted(places, torch.tensor(ends)).tolist()
    found = []
    for start, end, first, last in zip(ends, ends[1:], borders, borders[1:], strict=False):
        if first == last:
            continue
        mask = None
        if places is not None or 0 < window < end - start:
            key = torch.arange(end - start)
            place = key[:, None] if places is None else places[first:last, None] - start
            hidden = key > place
            if window:
                hidden |= key <= place - window
            mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
        found.append(OneSequence(slice(start, end), slice(first, last), mask))
    return found


def _heads(x: Tensor, group: int = 1) -> Tensor:
    """[tokens, heads, size] as the kernel reads it, [1, heads, tokens, size]; each head `group` times."""
    return (x if group == 1 else x.repeat_interleave(group, 1)).transpose(0, 1)[None]


def _apart(qkv: Tensor, frame: Frame, window: int, places: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
    queries, keys, values = frame.cut(qkv)
    queries = queries if places is None else queries.index_select(0, places)
    outputs, state, group = [queries.new_empty(0, *queries.shape[1:])], [], frame.heads // frame.kv_heads
    for own in _sequences(frame, qkv.dtype, window, places):
        q, k, v = _heads(queries[own.queries]), _heads(keys[own.tokens], group), _heads(values[own.tokens], group)
        out, normaliser = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, own.mask is None, attn_mask=own.mask, scale=frame.scale
        )
        outputs.append(out[0].transpose(0, 1))
        state.append(normaliser)
    return torch.cat(outputs).flatten(1), tuple(state)


def _apart_backward(
    grad: Tensor, qkv: Tensor, out: Tensor, state: Sequence[Tensor], frame: Frame, window: int, places: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values as parts of one tensor, as `qkv` is."""
    queries, keys, values = frame.cut(qkv)
    queries = queries if places is None else queries.index_select(0, places)
    found, group = torch.empty_like(qkv) if places is None else torch.zeros_like(qkv), frame.heads // frame.kv_heads
    d_queries, d_keys, d_values = frame.cut(found)
    d_read = d_queries if places is None else torch.empty_like(queries)
    for own, normaliser in zip(_sequences(frame, qkv.dtype, window, places), state, strict=True):
        q, k, v = _heads(queries[own.queries]), _heads(keys[own.tokens], group), _heads(values[own.tokens], group)
        d_q, d_k, d_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _heads(grad[own.queries]),
            q,
            k,
            v,
            _heads(out[own.queries]),
            normaliser,
            0.0,
            own.mask is None,
            attn_mask=own.mask,
            scale=frame.scale,
        )
        d_read[own.queries] = d_q[0].transpose(0, 1)
        for target, part in ((d_keys, d_k), (d_values, d_v)):
            slope = part[0].transpose(0, 1)
            target[own.tokens] = slope if group == 1 else slope.unflatten(1, (-1, group)).sum(2)
    if places is not None:
        d_queries.index_copy_(0, places, d_read)
    return d_queries, d_keys, d_values
