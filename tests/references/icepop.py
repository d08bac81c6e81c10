"""Weights and masks for a sampler that differs from the learner (C11): truncated and masked weights per token and sequence.

Segments are compared with the authors' own numbers (golden/ipa_reject.json).

`old` are log-probs of the learner before the update, `roll` those reported by the engine. All weights are constants (no gradient).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .forms import Rows, clip, mean


def _log_ratios(old: Sequence[float], roll: Sequence[float]) -> list[float]:
    return [clip(x - y, -20.0, 20.0) for x, y in zip(old, roll, strict=True)]


def token_ratios(old: Rows, roll: Rows) -> Rows:
    """exp(old - roll) per token, the exponent held in [-20, 20]."""
    return [[math.exp(x) for x in _log_ratios(a, b)] for a, b in zip(old, roll, strict=True)]


def sequence_ratios(old: Rows, roll: Rows, geometric: bool = False) -> list[float]:
    """Per row: exp(sum (old - roll)), the sum held in [-20, 20]; geometric: exp(mean (old - roll)) instead."""
    result = []
    for a, b in zip(old, roll, strict=True):
        xs = [x - y for x, y in zip(a, b, strict=True)]
        result.append(math.exp(clip(mean(xs) if geometric else math.fsum(xs), -20.0, 20.0)))
    return result


def token_truncated(old: Rows, roll: Rows, cap: float = 2.0) -> Rows:
    """Token-TIS: min(w_t, cap)."""
    return [[min(w, cap) for w in row] for row in token_ratios(old, roll)]


def sequence_truncated(old: Rows, roll: Rows, cap: float = 2.0) -> list[float]:
    """Seq-TIS: min(w, cap) per row."""
    return [min(w, cap) for w in sequence_ratios(old, roll)]


def token_masked(old: Rows, roll: Rows, low: float = 0.5, high: float = 5.0) -> Rows:
    """IcePop: w_t if low <= w_t <= high, else 0 (token MIS with both bounds; token MIS proper: 0.5 and 2.0)."""
    return [[w if low <= w <= high else 0.0 for w in row] for row in token_ratios(old, roll)]


def sequence_masked(old: Rows, roll: Rows, low: float = 0.5, high: float = 2.0) -> list[float]:
    """Sequence MIS: w if low <= w <= high, else 0, per row, w the product over the row's tokens."""
    return [w if low <= w <= high else 0.0 for w in sequence_ratios(old, roll)]


def geometric_kept(old: Rows, roll: Rows, low: float = 0.999, high: float = 1.001) -> list[bool]:
    """seq_mean_k1: whether a row stays, low <= exp(mean (old - roll)) <= high."""
    return [low <= w <= high for w in sequence_ratios(old, roll, geometric=True)]


def k3_kept(old: Rows, roll: Rows, high: float = 0.01) -> list[bool]:
    """seq_mean_k3: whether the mean over the row of r - log r - 1 is at most `high` (0.001 to 0.01 in use), r = exp(old - roll)."""
    return [mean([math.exp(x) - x - 1.0 for x in _log_ratios(a, b)]) <= high for a, b in zip(old, roll, strict=True)]


def k2_kept(old: Rows, roll: Rows, high: float = 0.01) -> list[bool]:
    """The same with half the square of the log-ratio."""
    return [mean([0.5 * x * x for x in _log_ratios(a, b)]) <= high for a, b in zip(old, roll, strict=True)]
