"""Weights and masks for a sampler that differs from the learner (C11): truncated and masked weights per token, sequence and segment.

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


def k3_kept(old: Rows, roll: Rows, high: float = 0.01, kind: str = "mean") -> list[bool]:
    """seq_mean_k3 (or kind "max", "sum"): mean over the row of r - log r - 1 at most `high` (0.001 to 0.01 in use), r = exp(old - roll)."""
    return _at_most([[math.exp(x) - x - 1.0 for x in _log_ratios(a, b)] for a, b in zip(old, roll, strict=True)], high, kind)


def k2_kept(old: Rows, roll: Rows, high: float = 0.01, kind: str = "mean") -> list[bool]:
    """The same with half the square of the log-ratio."""
    return _at_most([[0.5 * x * x for x in _log_ratios(a, b)] for a, b in zip(old, roll, strict=True)], high, kind)


def _at_most(rows: Rows, high: float, kind: str) -> list[bool]:
    take = {"mean": mean, "max": max, "sum": math.fsum}[kind]
    return [take(row) <= high for row in rows]


def segment_ratios(old: Rows, roll: Rows, segments: Sequence[Sequence[int]]) -> Rows:
    """Per token: exp(mean (old - roll)) over the tokens of its segment. segments[i][t]: number of the segment (turn) of that token."""
    return [[math.exp(x) for x in row] for row in _per_segment([_log_ratios(a, b) for a, b in zip(old, roll, strict=True)], segments)]


def segment_differences(old: Rows, roll: Rows, segments: Sequence[Sequence[int]]) -> Rows:
    """Per token: the segment's mean of exp(old) - exp(roll), a difference of probabilities."""
    gaps = [[math.exp(x) - math.exp(y) for x, y in zip(a, b, strict=True)] for a, b in zip(old, roll, strict=True)]
    return _per_segment(gaps, segments)


def segment_kept(
    old: Rows,
    roll: Rows,
    segments: Sequence[Sequence[int]],
    ratio: tuple[float, float] = (0.8, 1.05),
    difference: tuple[float, float] | None = (-0.1, 0.1),
) -> list[list[bool]]:
    """Per token: whether its segment stays, the ratio within `ratio` and (if given) the difference within `difference`, bounds included."""
    ratios, gaps = segment_ratios(old, roll, segments), segment_differences(old, roll, segments)
    kept = []
    for r, g in zip(ratios, gaps, strict=True):
        kept.append(
            [ratio[0] <= x <= ratio[1] and (difference is None or difference[0] <= y <= difference[1]) for x, y in zip(r, g, strict=True)]
        )
    return kept


def _per_segment(values: Rows, segments: Sequence[Sequence[int]]) -> Rows:
    result = []
    for row, ids in zip(values, segments, strict=True):
        result.append([mean([x for x, s in zip(row, ids, strict=True) if s == own]) for own in ids])
    return result
