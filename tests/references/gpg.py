"""GPG (B22): the plain policy gradient with the group mean, rescaled for groups without a signal."""

from __future__ import annotations

from collections.abc import Sequence

from .forms import Rows, deviation, mean


def alpha(returns: Sequence[Sequence[float]]) -> float:
    """B/(B - M): B trajectories in all, M of them in groups whose returns are all equal (also groups of one). All dead: 1."""
    b = sum(len(group) for group in returns)
    dead = sum(len(group) for group in returns if max(group) == min(group))
    return b / (b - dead) if b > dead else 1.0


def alpha_verl(returns: Sequence[Sequence[float]]) -> float:
    """verl's port, for comparison only: B over the number of trajectories with a return other than 0 (at least 1)."""
    flat = [r for group in returns for r in group]
    return len(flat) / max(1, sum(r != 0 for r in flat))


def advantages(returns: Sequence[Sequence[float]], divide: bool = False, eps: float = 1e-6, rescale: bool = True) -> list[list[float]]:
    """A = alpha (R - mean)/F per trajectory, groups as given; F = 1 (default) or std1 + eps. Equal returns: exactly 0."""
    factor = alpha(returns) if rescale else 1.0
    result = []
    for group in returns:
        if max(group) == min(group):
            result.append([0.0 for _ in group])
            continue
        by = deviation(group, 1) + eps if divide else 1.0
        result.append([factor * (r - mean(group)) / by for r in group])
    return result


def losses(logprobs: Rows, advantages: Rows) -> tuple[Rows, Rows]:
    """(loss, gradient) per token: -A logp and -A. No ratio, no clip, no KL. Aggregation: mean over all tokens."""
    loss = [[-a * x for a, x in zip(advantages[i], logprobs[i], strict=True)] for i in range(len(logprobs))]
    grad = [[-a for a in advantages[i]] for i in range(len(logprobs))]
    return loss, grad
