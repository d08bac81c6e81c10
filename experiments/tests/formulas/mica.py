"""MICA (B16): the potential's increase per turn and its return, normalised separately and mixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from references.forms import by_group, discounted


def increments(potentials: Sequence[float]) -> list[float]:
    """r_k = Phi(s_k) - Phi(s_{k-1}) for k = 1..K; potentials has K + 1 entries, the first before turn 1."""
    return [potentials[k + 1] - potentials[k] for k in range(len(potentials) - 1)]


def advantages(
    potentials: Sequence[Sequence[float]],
    groups: Sequence[Any],
    mix: float = 1.0,
    gamma: float = 1.0,
    peers: str = "group",
    eps: float = 1e-6,
) -> list[list[float]]:
    """A_k = z(r_k) + mix z(sum_{j >= k} gamma^(j - k) r_j), z (std1 + eps) over all turns of the group, or with peers "turn" over the
    group's
    turns at the same index. mix, gamma and the peers are not published. One value or equal values: 0."""
    rewards = [increments(p) for p in potentials]
    later = [discounted(r, gamma) for r in rewards]
    keys = [(g, k if peers == "turn" else 0) for row, g in zip(rewards, groups, strict=True) for k in range(len(row))]
    a = by_group([x for row in rewards for x in row], keys, eps=eps)
    b = by_group([x for row in later for x in row], keys, eps=eps)
    it = iter([x + mix * y for x, y in zip(a, b, strict=True)])
    return [[next(it) for _ in row] for row in rewards]
