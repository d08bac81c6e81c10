"""DAPO (C6): asymmetric clip, groups of equal results dropped, token mean, a penalty for overlong responses."""

from __future__ import annotations

from collections.abc import Sequence


def overlong(length: int, limit: int = 20480, buffer: int = 4096, factor: float = 1.0) -> float:
    """Added to the reward: min(0, -(length - (limit - buffer))/buffer * factor). At length = limit it is -factor."""
    return min(0.0, -(length - (limit - buffer)) / buffer * factor)


def informative(results: Sequence[float]) -> bool:
    """Whether a group is kept: its results are not all equal. A group of one is not informative."""
    return max(results) != min(results)
