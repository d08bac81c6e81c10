"""Kernels that pass over a chunk of logits once: log-probs, and the gradient of the logits."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

LOGITS_AT_ONCE = 4096


@triton.jit
def _pick(logits, target, logprob, normaliser, entropy, factor, words, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK], tl.float32)
    for start in range(0, words, BLOCK):
        column = start + lane
        value = tl.load(logits + row * words + column, mask=column < words, other=-1e30) * factor
        larger = tl.maximum(largest, value)
        shrink, part = tl.exp(largest - larger), tl.exp(value - larger)
        total = total * shrink + part
        weighted = weighted * shrink + tl.where(part > 0, part * value, 0.0)
        largest = larger
    peak = tl.max(largest, 0)
    shrink = tl.exp(largest - peak)
    mass = tl.sum(total * shrink, 0)
    log_sum = peak + tl.log(mass)
    chosen = tl.load(logits + row * words + tl.load(target + row)) * factor
    tl.store(normaliser + row, log_sum)
    tl.store(logprob + row, chosen - log_sum)
    tl.store(entropy + row, log_sum - tl.sum(weighted * shrink, 0) / mass)


def pick(logits: Tensor, target: Tensor, factor: float, logprob: Tensor, normaliser: Tensor, entropy: Tensor) -> None:
    """For every row of float32 logits, times the factor: log-prob of the target, log of the softmax's denominator, entropy."""
    rows, words = logits.shape
    _pick[(rows,)](logits, target, logprob, normaliser, entropy, factor, words, BLOCK=LOGITS_AT_ONCE, num_warps=8)


@triton.jit
def _slopes(logits, target, normaliser, entropy, pull, push, out, factor, words, HAS_PUSH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < words
    log_p = tl.load(logits + row * words + column, mask=inside, other=0.0) * factor - tl.load(normaliser + row)
    strength = tl.load(pull + row)
    inner = -strength
    if HAS_PUSH:  # d entropy / d logit = −p (log p + entropy)
        inner = inner - tl.load(push + row) * (log_p + tl.load(entropy + row))
    slope = tl.exp(log_p) * inner + tl.where(column == tl.load(target + row), strength, 0.0)
    tl.store(out + row * words + column, (slope * factor).to(out.dtype.element_ty), mask=inside)


def slopes(
    logits: Tensor,
    target: Tensor,
    normaliser: Tensor,
    entropy: Tensor,
    pull: Tensor,
    push: Tensor | None,
    factor: float,
    dtype: Any,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient of raw logits if the log-prob of the target has gradient `pull` and the entropy has `push`. `out`: where it is put."""
    rows, words = logits.shape
    if out is None:
        out = torch.empty(logits.shape, dtype=dtype, device=logits.device)
    grid = (rows, triton.cdiv(words, LOGITS_AT_ONCE))
    _slopes[grid](
        logits, target, normaliser, entropy, pull, push, out, factor, words, HAS_PUSH=push is not None, BLOCK=LOGITS_AT_ONCE, num_warps=8
    )
    return out
