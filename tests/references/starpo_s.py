"""StarPO-S (C13): groups with little spread of returns are dropped (see filtered.py), or weighted down."""

from __future__ import annotations

from collections.abc import Sequence

from .forms import deviation, mean


def spread(returns: Sequence[Sequence[float]]) -> list[float]:
    """Score per group: the sample standard deviation (ddof 1) of its trajectories' returns; 0 for a group of one."""
    return [deviation(group, 1) for group in returns]


def means(returns: Sequence[Sequence[float]]) -> list[float]:
    """The other score: the mean return per group."""
    return [mean(group) for group in returns]
