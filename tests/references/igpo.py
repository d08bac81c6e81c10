"""IGPO (A3): a turn is rewarded by how much it raises the policy's probability of the gold answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .forms import by_group, discounted, mean


def answer_probability(aliases: Sequence[Sequence[float]]) -> float:
    """exp(mean log-prob) of the gold answer's tokens; with several aliases the most probable one counts."""
    return max(math.exp(mean(logprobs)) for logprobs in aliases)


def turn_rewards(probabilities: Sequence[float] | None, outcome: float, turns: int, alpha: float = 1.0) -> list[float]:
    """r_k of one trajectory with K = `turns` turns: p_k - p_{k-1} for k < K, credited to the turn that brought the observation;
    the last turn gets alpha * outcome (and no gain).

    probabilities[k], k = 0..K-1, is the gold answer's probability before turn k + 1 is generated (p_0: the question only). No gold answer
    (None) or another number of probabilities than turns: the outcome alone, zeros elsewhere.
    """
    rewards = [0.0] * turns
    if probabilities is not None and len(probabilities) == turns:
        for k in range(turns - 1):
            rewards[k] = probabilities[k + 1] - probabilities[k]
    rewards[-1] = alpha * outcome
    return rewards


def normalised(
    rewards: Sequence[Sequence[float]], groups: Sequence[Any], how: str = "joint", ddof: int = 1, eps: float = 1e-6
) -> list[list[float]]:
    """z-scores of all turn rewards of a group. joint: gains and outcomes in one pool; separate: the last turns in a pool of their own.

    A pool of one value or of equal values gives exactly 0. std1 + eps (the source does not say which std).
    """
    keys: list[Any] = []
    for row, g in zip(rewards, groups, strict=True):
        keys += [(g, how == "separate" and k == len(row) - 1) for k in range(len(row))]
    flat = iter(by_group([r for row in rewards for r in row], keys, ddof=ddof, eps=eps))
    return [[next(flat) for _ in row] for row in rewards]


def advantages(
    rewards: Sequence[Sequence[float]], groups: Sequence[Any], gamma: float = 1.0, how: str = "joint", ddof: int = 1, eps: float = 1e-6
) -> list[list[float]]:
    """A_k = sum_{j >= k} gamma^(j - k) of the normalised rewards; rewards[i] are the turns of trajectory i, groups[i] its group."""
    return [discounted(row, gamma) for row in normalised(rewards, groups, how, ddof, eps)]
