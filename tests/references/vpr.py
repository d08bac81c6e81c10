"""VPR (B7): K candidates per visited state, scored by an oracle and compared with each other; the best one is played."""

from __future__ import annotations

from collections.abc import Sequence

from .forms import scores, whitened


def relative(rewards: Sequence[float], divide: bool = False, eps: float = 1e-6) -> list[float]:
    """Per candidate of ONE state: reward minus the mean of the state's K = 4 candidates; divide: by std1 + eps (not known whether they
    do)."""
    return scores(rewards, divide, eps=eps)


def advantages(states: Sequence[Sequence[float]], divide: bool = False, eps: float = 1e-6) -> list[list[float]]:
    """Per state and candidate: the relative rewards, whitened over all candidates of states whose rewards differ; other states: 0, not
    counted."""
    alive = [s for s in states if max(s) != min(s)]
    flat = iter(whitened([x for s in alive for x in relative(s, divide, eps)]))
    return [[next(flat) for _ in s] if max(s) != min(s) else [0.0 for _ in s] for s in states]


def committed(rewards: Sequence[float], draw: float) -> int:
    """The candidate that is played: one of the best, uniformly; draw in [0, 1)."""
    best = [i for i, r in enumerate(rewards) if r == max(rewards)]
    return best[min(int(draw * len(best)), len(best) - 1)]
