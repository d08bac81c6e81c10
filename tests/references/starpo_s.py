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


def snr_weights(scores: Sequence[float]) -> list[float]:
    """Weight per group for its advantages: sigma_g / max sigma. All sigmas 0: weight 0 (the advantages are 0 anyway)."""
    top = max(scores)
    return [s / top if top > 0 else 0.0 for s in scores]
