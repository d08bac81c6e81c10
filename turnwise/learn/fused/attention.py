"""Causal attention inside each sequence of a packed row, and its gradient.

On a GPU queries, keys and values are read where the matrix product put them, and several query heads read one key head in place. Short
sequences are one call of torch's variable-length flash kernel. For long ones cuDNN's kernel is twice as fast, but it takes a single
length and builds a plan for each new one: so each is a separate call, at its length rounded up. The rows beyond its end belong to its
neighbour; causality excludes them from the forward pass, and a gradient of zeros excludes them from the backward pass. Layers with a
sliding window use the flash kernel for all lengths beyond it. On other devices: one sequence after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

LONG = 2048  # tokens at which a single sequence fills a GPU
GRAIN = 256  # lengths of long sequences are rounded up to this


@dataclass(frozen=True)
class Stretch:
    """Neighbours that are one call: a long sequence, or short ones with their offsets in the run."""

    start: int
    end: int
    offsets: Tensor | None  # None: a long one
    longest: int


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
    runs: list[Stretch] = field(default_factory=list)
    scaling: float | None = None  # of the products of queries and keys; None: 1 / √size

    def __post_init__(self) -> None:
        if self.offsets.is_cuda:
            self.runs.extend(_runs(self))

    @property
    def scale(self) -> float:
        """The scale of the products of queries and keys."""
        scale: float = self.size**-0.5 if self.scaling is None else self.scaling
        return scale

    def runs_for(self, window: int) -> list[Stretch]:
        """The calls of a layer: a window that is shorter than a sequence needs the kernel that knows windows."""
        if not self.runs or not self.narrows(window):
            return self.runs
        return [Stretch(0, sum(self.lengths), self.offsets, max(self.lengths))]

    def narrows(self, window: int) -> bool:
        """Whether a window (0: none) hides anything."""
        return 0 < window < max(self.lengths)

    def cut(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [tokens, heads, size] each, as views."""
        queries, keys, values = qkv.view(len(qkv), -1, self.size).split([self.heads, self.kv_heads, self.kv_heads], 1)
        return queries, keys, values


def _runs(frame: Frame) -> list[Stretch]:
    fast = max(frame.lengths) >= LONG and cudnn_is_right(frame.heads, frame.kv_heads, frame.size)
    found: list[Stretch] = []
    start = first = 0  # the token and the sequence that the current run of short ones begins with
    place = 0

    def close(last: int) -> None:
        if last > first:
            longest = max(frame.lengths[first:last])
            whole = first == 0 and last == len(frame.lengths)
            found.append(Stretch(start, place, frame.offsets if whole else frame.offsets[first : last + 1] - start, longest))

    for number, length in enumerate(frame.lengths):
        if fast and length >= LONG:
            close(number)
            found.append(Stretch(place, place + length, None, length))
            first, start = number + 1, place + length
        place += length
    close(len(frame.lengths))
    return found


def attend(qkv: Tensor, frame: Frame, window: int = 0) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What every token reads, [tokens, heads × size], and what else the backward pass needs. `window`: how many tokens are seen; 0: all."""
    if not qkv.is_cuda:
        return torch.cat([_one(part, frame, window) for part in _parts(frame.cut(qkv), frame)]).flatten(1), ()
    outputs, state = [], []
    for run in frame.runs_for(window):
        out, *more = _long(qkv, run, frame) if run.offsets is None else _short(qkv, run, frame, window)
        outputs.append(out)
        state += more
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).flatten(1), tuple(state)


def attend_backward(
    grad: Tensor, qkv: Tensor, out: Tensor, state: Sequence[Tensor], frame: Frame, window: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    grad, out = (x.view(len(qkv), frame.heads, frame.size) for x in (grad, out))
    left, found = list(state), []
    if not qkv.is_cuda:
        found = [_one_backward(slope, part, frame, window) for slope, part in _with(grad, _parts(frame.cut(qkv), frame), frame)]
    for run in frame.runs_for(window):
        rows = slice(run.start, run.end)
        if run.offsets is None:
            found.append(_long_backward(grad[rows], qkv, out[rows], left[:3], run, frame))
            left = left[3:]
        else:
            found.append(_short_backward(grad[rows], qkv, out[rows], left.pop(0), run, frame, window))
    d_q, d_k, d_v = found[0] if len(found) == 1 else (torch.cat(column) for column in zip(*found, strict=True))
    return d_q, d_k, d_v


# Short sequences: one call for all of a run.


def _short(qkv: Tensor, run: Stretch, frame: Frame, window: int = 0) -> tuple[Tensor, Tensor]:
    q, k, v = frame.cut(qkv[run.start : run.end])
    out, normaliser, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, run.offsets, run.offsets, run.longest, run.longest, 0.0, True, False, scale=frame.scale, **_sides(window)
    )
    return out, normaliser


def _sides(window: int) -> dict[str, int]:
    """How far a token sees to both sides, for the flash kernel."""
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}


def _short_backward(grad: Tensor, qkv: Tensor, out: Tensor, normaliser: Tensor, run: Stretch, frame: Frame, window: int = 0) -> Any:
    q, k, v = frame.cut(qkv[run.start : run.end])
    no_chance = torch.zeros(2, dtype=torch.uint64, device=qkv.device)  # there is no dropout to repeat
    nothing = torch.empty(0, device=qkv.device)
    seams = run.offsets, run.offsets, run.longest, run.longest
    return torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, normaliser, *seams, 0.0, True, no_chance, nothing, scale=frame.scale, **_sides(window)
    )


# Long sequences: a call each.


def _long(qkv: Tensor, run: Stretch, frame: Frame) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = _padded_rows(qkv, run, frame)
    out, normaliser, *_, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *rows, None, True, 0.0, True, False, scale=frame.scale
    )
    return out[0].transpose(0, 1)[: run.longest], normaliser, seed, offset


def _long_backward(grad: Tensor, qkv: Tensor, out: Tensor, state: Sequence[Tensor], run: Stretch, frame: Frame) -> Any:
    rows, (normaliser, seed, offset) = _padded_rows(qkv, run, frame), state
    length = rows[0].shape[2]
    wide, slope = (x.new_zeros(length, *x.shape[1:]) for x in (out, grad))
    wide[: run.longest], slope[: run.longest] = out, grad
    wide, slope = (x.transpose(0, 1)[None] for x in (wide, slope))
    found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        slope, *rows, wide, normaliser, seed, offset, None, None, None, length, length, 0.0, True, scale=frame.scale
    )
    return tuple(x[0].transpose(0, 1)[: run.longest] for x in found)


def _padded_rows(qkv: Tensor, run: Stretch, frame: Frame) -> list[Tensor]:
    """Queries, keys and values of a long sequence and what follows it, [1, heads, rounded length, size] each."""
    end = run.start + -(-run.longest // GRAIN) * GRAIN
    part = qkv[run.start : end]
    if end > len(qkv):
        part = torch.cat([part, part.new_zeros(end - len(qkv), part.shape[1])])
    return [x.transpose(0, 1)[None] for x in frame.cut(part)]


@lru_cache
def cudnn_is_right(heads: int, kv_heads: int, size: int) -> bool:
    """Whether cuDNN's kernel runs here for such heads and gives what the flash kernel gives, forward and backward."""
    frame = Frame([300], torch.empty(0), torch.empty(0), (), (), heads, kv_heads, size, 1e-6)
    generator = torch.Generator("cuda").manual_seed(0)
    qkv, grad = (torch.randn(300, n * size, generator=generator, device="cuda").bfloat16() for n in (heads + 2 * kv_heads, heads))
    offsets = torch.tensor([0, 300], dtype=torch.int32, device="cuda")
    short, alone = Stretch(0, 300, offsets, 300), Stretch(0, 300, None, 300)
    slope = grad.view(300, heads, size)
    try:
        out, normaliser = _short(qkv, short, frame)
        other, *state = _long(qkv, alone, frame)
        wanted = [out, *_short_backward(slope, qkv, out, normaliser, short, frame)]
        found = [other, *_long_backward(slope, qkv, out, state, alone, frame)]
        return all(bool((one - two).norm() <= 0.02 * two.norm()) for one, two in zip(found, wanted, strict=True))
    except RuntimeError:  # no plan for such heads, or no cuDNN
        return False


# Anywhere: one sequence after another.

Part = tuple[Tensor, Tensor, Tensor]


def _parts(qkv: Part, frame: Frame) -> list[Part]:
    q, k, v = (x.split(frame.lengths) for x in qkv)
    return list(zip(q, k, v, strict=True))


def _with(grad: Tensor, parts: list[Part], frame: Frame) -> list[tuple[Tensor, Part]]:
    return list(zip(grad.split(frame.lengths), parts, strict=True))


def _one(part: Part, frame: Frame, window: int) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in part)
    mask = None
    if 0 < window < len(part[0]):
        place = torch.arange(len(part[0]), device=q.device)
        distance = place[:, None] - place
        mask = (distance >= 0) & (distance < window)
    shared = frame.heads != frame.kv_heads
    out: Tensor = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=frame.scale, enable_gqa=shared)
    return out[0].transpose(0, 1)


def _one_backward(grad: Tensor, part: Part, frame: Frame, window: int) -> Part:
    with torch.enable_grad():
        q, k, v = (x.detach().requires_grad_() for x in part)
        out = _one((q, k, v), frame, window)
    d_q, d_k, d_v = torch.autograd.grad(out, (q, k, v), grad)
    return d_q, d_k, d_v
