"""ScalingInter (A7): the cap on turns grows in stages."""

from __future__ import annotations

from collections.abc import Sequence


def cap(step: int, rounds: Sequence[int] = (10, 20, 30), every: int = 100) -> int:
    """rounds[min(step // every, len - 1)], step from 0. (10, 20, 30) is the setting for ScienceWorld and TextCraft."""
    return rounds[min(step // every, len(rounds) - 1)]
