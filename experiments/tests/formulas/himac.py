"""HiMAC (A14): blueprints are compared with blueprints, then actions under the best blueprint with each other."""

from __future__ import annotations

from collections.abc import Sequence

from references.forms import scores


def macro(returns: Sequence[float], eps: float = 1e-6) -> list[float]:
    """Per blueprint of one task: the z-score (std1 + eps) of the return of its greedy rollout; for blueprint tokens only."""
    return scores(returns, eps=eps)


def best(returns: Sequence[float]) -> int:
    """The blueprint of the second phase: the largest return, the first of equals."""
    return max(range(len(returns)), key=lambda i: returns[i])


def micro(returns: Sequence[float], eps: float = 1e-6) -> list[float]:
    """Per rollout under the best blueprint: the z-score of its return; for action tokens only."""
    return scores(returns, eps=eps)
