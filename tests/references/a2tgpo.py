"""A2TGPO (B1): information gains compared at the same turn index, summed with a bounded size, and a clip range per turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .forms import Rows, by_group, clipped, mean, sigmoid


def gain_scores(gains: Sequence[Sequence[float]], groups: Sequence[Any], eps: float = 1e-6) -> list[list[float]]:
    """z_{i,k} = (IG - mean)/(std0 + eps) over the trajectories of the group at the SAME turn index. gains[i]: the search turns of
    trajectory i (all but the answer). Alone at its index, or equal gains: 0."""
    keys = [(g, k) for row, g in zip(gains, groups, strict=True) for k in range(len(row))]
    flat = iter(by_group([x for row in gains for x in row], keys, ddof=0, eps=eps))
    return [[next(flat) for _ in row] for row in gains]


def depth_sums(z: Sequence[float], gamma: float = 1.0) -> list[float]:
    """D_k = sum_{j=k}^{n} gamma^(j - k) z_j / sqrt(n - k + 1) of one trajectory, n its number of search turns."""
    n = len(z)
    return [math.fsum(gamma ** (j - k) * z[j] for j in range(k, n)) / math.sqrt(n - k) for k in range(n)]


def advantages(
    gains: Sequence[Sequence[float]],
    outcomes: Sequence[float],
    groups: Sequence[Any],
    alpha: float = 0.3,
    gamma: float = 1.0,
    eps: float = 1e-6,
) -> list[list[float]]:
    """Per trajectory: alpha D_k + O_i for each search turn, then O_i for the answer turn.

    O_i: group z-score of the outcome (std1 + eps). alpha: 1.0 is the code's default, 0.3 what the scripts use.
    """
    o = by_group(outcomes, groups, eps=eps)
    z = gain_scores(gains, groups, eps)
    return [[alpha * d + o[i] for d in depth_sums(z[i], gamma)] + [o[i]] for i in range(len(gains))]


def clip_scales(gains: Sequence[Sequence[float]], groups: Sequence[Any], width: float = 0.3, eps: float = 1e-6) -> list[list[float]]:
    """c_{i,k} = 1 + width (2 sigm(z_{i,k}) - 1) per search turn, then 1.0 for the answer turn."""
    return [[1 + width * (2 * sigmoid(x) - 1) for x in row] + [1.0] for row in gain_scores(gains, groups, eps)]


def losses(
    logprobs: Rows, old: Rows, advantages: Sequence[float], scales: Sequence[float], eps_low: float = 3e-3, eps_high: float = 4e-3
) -> tuple[Rows, Rows]:
    """(loss, gradient) per token; a row is a TURN with one advantage and one scale c. Ratio exp(mean log-ratio), straight through
    to its tokens: the derivative with respect to each token's log-prob is -A s (not divided by the length), 0 where clipped.
    """
    loss: Rows = []
    grad: Rows = []
    for row, before, a, c in zip(logprobs, old, advantages, scales, strict=True):
        s = math.exp(min(mean([x - y for x, y in zip(row, before, strict=True)]), 10.0))
        value, slope = clipped(a, s, 1 - c * eps_low, 1 + c * eps_high)
        loss.append([value for _ in row])
        grad.append([slope for _ in row])
    return loss, grad
