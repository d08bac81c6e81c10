"""Replay of successes (A6): a group that failed as a whole gets one stored success of the same task.

Source: dvlab-research/ARPO, commit 7489ae309e90d8b3b9e823f495b63e5116434060, `verl/trainer/replay_buffer.py:ReplayBuffer` and
`verl/trainer/ray_trainer.py:apply_replay`. Confirmed by executing both (tests/golden/replay_success.json, the same attempts).

The buffer is filled AFTER the whole batch was looked at, with the original attempts. `get_pos` draws uniformly. The replayed
attempt replaces the first. A peculiarity: it is stored under task_config["task_id"] and looked up under task_config["id"]; here
they are the same.
"""

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
