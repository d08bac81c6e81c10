"""Replay of successes (A6): a group that failed as a whole gets one stored success of the same task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from .forms import deviation, mean

T = TypeVar("T")


def fails(scores: Sequence[float], spread: float = 0.05, level: float = 0.2) -> bool:
    """Whether the group asks for a replay: std0(score) < spread and mean(score) < level."""
    return deviation(scores, 0) < spread and mean(scores) < level


def replaced(
    group: Sequence[T], scores: Sequence[float], stored: Sequence[T], draw: float, spread: float = 0.05, level: float = 0.2
) -> list[T]:
    """The group to learn from: its FIRST member replaced by stored[floor(draw * len)], draw in [0, 1), if it fails and something is
    stored."""
    if not stored or not fails(scores, spread, level):
        return list(group)
    return [stored[min(int(draw * len(stored)), len(stored) - 1)], *group[1:]]


def remembered(stored: Sequence[T], group: Sequence[T], scores: Sequence[float], size: int = 8, least: float = 0.1) -> list[T]:
    """The task's buffer after the batch (updated AFTER the replay): every own rollout with score > least is appended, the oldest leave."""
    kept = list(stored)
    for item, score in zip(group, scores, strict=True):
        if score > least:
            kept.append(item)
            kept = kept[-size:]
    return kept
