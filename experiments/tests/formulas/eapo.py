"""EAPO (A17): each round is a sample of its own; the final reward is discounted by the distance to the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from references.forms import by_group


def round_rewards(outcome: float, rounds: int, gamma: float = 0.995) -> list[float]:
    """r_k = gamma^(K - k) R_K for k = 1..K. 0.995 is recalled, not confirmed."""
    return [gamma ** (rounds - k) * outcome for k in range(1, rounds + 1)]


def advantages(
    outcomes: Sequence[float], rounds: Sequence[int], groups: Sequence[Any], gamma: float = 0.995, eps: float = 1e-6
) -> list[list[float]]:
    """Per trajectory and round: the z-score (std1 + eps) of r_k over ALL rounds of all trajectories of the group. Equal values: 0."""
    rewards = [round_rewards(r, n, gamma) for r, n in zip(outcomes, rounds, strict=True)]
    keys = [g for row, g in zip(rewards, groups, strict=True) for _ in row]
    flat = iter(by_group([r for row in rewards for r in row], keys, eps=eps))
    return [[next(flat) for _ in row] for row in rewards]
