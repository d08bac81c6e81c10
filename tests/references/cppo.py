"""CPPO (B21): only the completions with the largest |advantage| are learned from."""

from __future__ import annotations

import math
from collections.abc import Sequence


def kept(advantages: Sequence[float], prune: float = 0.5) -> list[int]:
    """Indices (ascending) that stay in ONE group: the k = floor(N (1 - prune)) largest |A|, at least one. Ties: the earlier first.

    1e-9 is added before the floor, so that 10 * (1 - 0.9) is 1.
    """
    number = max(1, math.floor(len(advantages) * (1.0 - prune) + 1e-9))
    order = sorted(range(len(advantages)), key=lambda i: -abs(advantages[i]))
    return sorted(order[:number])


def allocation(prune: float = 0.5) -> int:
    """How many times as many groups are drawn, so that the update has as many completions as without pruning: floor(1/(1 - prune))."""
    return math.floor(1.0 / (1.0 - prune) + 1e-9)
