"""DAPO (C6): asymmetric clip, groups of equal results dropped, token mean, a penalty for overlong responses."""

from __future__ import annotations

from collections.abc import Sequence

from .forms import Rows, clipped, ratio


def overlong(length: int, limit: int = 20480, buffer: int = 4096, factor: float = 1.0) -> float:
    """Added to the reward: min(0, -(length - (limit - buffer))/buffer * factor). At length = limit it is -factor."""
    return min(0.0, -(length - (limit - buffer)) / buffer * factor)


def informative(results: Sequence[float]) -> bool:
    """Whether a group is kept: its results are not all equal. A group of one is not informative."""
    return max(results) != min(results)


def losses(
    logprobs: Rows, old: Rows, advantages: Rows, eps_low: float = 0.2, eps_high: float = 0.28, dual: float | None = None
) -> tuple[Rows, Rows]:
    """(loss, gradient) per token of the clip with two bounds; aggregation: mean over all tokens of the batch. verl adds dual = 3 or 10."""
    loss: Rows = [[] for _ in logprobs]
    grad: Rows = [[] for _ in logprobs]
    for i in range(len(logprobs)):
        for t in range(len(logprobs[i])):
            value, slope = clipped(advantages[i][t], ratio(logprobs[i][t], old[i][t]), 1 - eps_low, 1 + eps_high, dual)
            loss[i].append(value)
            grad[i].append(slope)
    return loss, grad
