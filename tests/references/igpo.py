"""IGPO: information gain as the reward of a turn, in the formula before the authors' rewrite of February 2026.

Sources: arXiv 2510.14967 and GuoqingWang1/IGPO at bff163b7. The rewrite is compared with its authors' own numbers (golden/igpo.json).
Curriculum (off in train.sh): progress = min(step / (epochs * batches per epoch), 1), step counted from 1;
w_outcome = 0.5 + 0.5 * progress, w_gain = 1.0 - 0.5 * progress.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .forms import by_group, discounted, mean


def curriculum(progress, outcome=(0.5, 1.0), gain=(1.0, 0.5)):
    """Weights (of the outcome, of the gain) at progress = min(step / steps, 1)."""
    progress = min(progress, 1.0)
    return outcome[0] + (outcome[1] - outcome[0]) * progress, gain[0] + (gain[1] - gain[0]) * progress


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
    """Of the formula before the rewrite: z-scores of all turn rewards of a group.

    joint: gains and outcomes in one pool; separate: the last turns in a pool of their own.

    A pool of one value or of equal values gives exactly 0. std1 + eps (the source does not say which std).
    """
    keys: list[Any] = []
    for row, g in zip(rewards, groups, strict=True):
        keys += [(g, how == "separate" and k == len(row) - 1) for k in range(len(row))]
    flat = iter(by_group([r for row in rewards for r in row], keys, ddof=ddof, eps=eps))
    return [[next(flat) for _ in row] for row in rewards]


def paper_advantages(
    rewards: Sequence[Sequence[float]], groups: Sequence[Any], gamma: float = 1.0, how: str = "joint", ddof: int = 1, eps: float = 1e-6
) -> list[list[float]]:
    """The formula before the rewrite.

    A_k = sum_{j >= k} gamma^(j - k) of the normalised rewards; rewards[i] are the turns of trajectory i, groups[i] its group."""
    return [discounted(row, gamma) for row in normalised(rewards, groups, how, ddof, eps)]
