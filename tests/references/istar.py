"""iStar (A11): step rewards from an implicit process reward model, trained on pairs of success and failure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .forms import by_group, clip, mean, sigmoid


def step_reward(prm: Sequence[float], old: Sequence[float], beta: float = 0.05) -> float:
    """r_k = beta * sum over the turn's tokens of (log pi_phi - log pi_old); old: the policy that sampled."""
    return beta * math.fsum(x - y for x, y in zip(prm, old, strict=True))


def pairs(successes: Sequence[bool], groups: Sequence[Any], how: str = "each") -> list[tuple[int, int]]:
    """(success, failure) of the same group, in order; a group without both gives none.

    each: every success with one failure, the n-th with the n-th, failures used again from the first when they run out. once: the same, but
    each failure at most once, further successes are left out. all (what the code does): every success with every failure.
    """
    found: list[tuple[int, int]] = []
    for g in dict.fromkeys(groups):
        good = [i for i in range(len(groups)) if groups[i] == g and successes[i]]
        bad = [i for i in range(len(groups)) if groups[i] == g and not successes[i]]
        if how == "all":
            found += [(i, j) for i in good for j in bad]
        else:
            found += [(i, bad[n % len(bad)]) for n, i in enumerate(good) if bad and (how == "each" or n < len(bad))]
    return found


def total(steps: Sequence[float], reduce: str = "sum") -> float:
    """The trajectory's score: the sum of its step rewards (the paper), or their mean (the code)."""
    return mean(steps) if reduce == "mean" else math.fsum(steps)


def prm_loss(rewards: Sequence[Sequence[float]], chosen: Sequence[tuple[int, int]], reduce: str = "sum") -> float:
    """Mean over pairs of -log sigm(score(success) - score(failure)); rewards[i] are the step rewards of trajectory i. No pair: 0."""
    if not chosen:
        return 0.0
    return mean([_softplus(total(rewards[j], reduce) - total(rewards[i], reduce)) for i, j in chosen])


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(clip(x, -700.0, 700.0))))


def prm_gradient(
    rewards: Sequence[Sequence[float]], chosen: Sequence[tuple[int, int]], beta: float = 0.05, reduce: str = "sum"
) -> list[float]:
    """Per trajectory: the derivative of the loss with respect to EACH of its tokens' log pi_phi (the same for all of them)."""
    result = [0.0] * len(rewards)
    for i, j in chosen:
        slope = -beta * sigmoid(total(rewards[j], reduce) - total(rewards[i], reduce)) / len(chosen)
        result[i] += slope / (len(rewards[i]) if reduce == "mean" else 1)
        result[j] -= slope / (len(rewards[j]) if reduce == "mean" else 1)
    return result


def relative(values: Sequence[float], groups: Sequence[Any], how: str = "rloo", eps: float = 1e-6) -> list[float]:
    """Within each group. rloo: n/(n - 1)(x - mean); mean: x - mean; std: (x - mean)/(std1 + eps). One value or equal values: 0."""
    if how == "std":
        return by_group(values, groups, eps=eps)
    sizes = [sum(h == g for h in groups) for g in groups]
    plain = by_group(values, groups, divide=False)
    return [x * n / (n - 1) if how == "rloo" and n > 1 else x for x, n in zip(plain, sizes, strict=True)]


def advantages(
    outcomes: Sequence[float],
    steps: Sequence[Sequence[float]],
    groups: Sequence[Any],
    weight: float = 1.0,
    how: str = "rloo",
    eps: float = 1e-6,
) -> list[list[float]]:
    """A_episode + weight A_step per trajectory and turn. Episode: one outcome per trajectory. Step: r_k against ALL steps of the group (the
    paper; the code takes only each trajectory's first row). No discount."""
    episode = relative(outcomes, groups, how, eps)
    keys = [g for row, g in zip(steps, groups, strict=True) for _ in row]
    flat = iter(relative([r for row in steps for r in row], keys, how, eps))
    return [[episode[i] + weight * next(flat) for _ in row] for i, row in enumerate(steps)]
