"""How well two credits of the same turns agree, in numbers and by the turns where they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.data.rollouts import Floats, Rollouts, alike


def agreement(one: Floats, other: Floats) -> dict[str, float | None]:
    """pearson, spearman: correlations over turns, None if a credit does not vary. Shares of turns: same_sign, where both are above 0,
    both below, or both 0; flipped, which one praises and the other blames; only_one, only_other, with credit from that one alone."""
    a, b = np.sign(one), np.sign(other)
    return {
        "pearson": correlation(one, other),
        "spearman": correlation(ranks(one), ranks(other)),
        "same_sign": float((a == b).mean()),
        "flipped": float((a * b < 0).mean()),
        "only_one": float(((a != 0) & (b == 0)).mean()),
        "only_other": float(((a == 0) & (b != 0)).mean()),
    }


def correlation(one: Floats, other: Floats) -> float | None:
    """Pearson's correlation; None if one of the two is constant: the mean of equal numbers is off by a last digit, and that would
    correlate perfectly."""
    if alike(one) or alike(other):
        return None
    a, b = one - one.mean(), other - other.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 1e-300 else None


def ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: Floats = (ends - (counts + 1) / 2)[inverse.reshape(-1)]
    return found


def biggest_differences(
    rollouts: Rollouts, records: Sequence[Mapping[str, Any]], one: Floats, other: Floats, top: int
) -> list[dict[str, Any]]:
    """The turns where two credits differ most, each credit divided by its mean absolute value, so that scales do not matter."""

    def scaled(values: Floats) -> Floats:
        return values / max(float(np.abs(values).mean()), 1e-300)

    gap = np.abs(scaled(one) - scaled(other))
    texts = {record["id"]: record for record in records}
    found = []
    for row in np.argsort(-gap, kind="stable")[:top].tolist():
        if gap[row] == 0:
            break
        label, t = rollouts.trajectory_labels[rollouts.trajectory[row]].item(), int(rollouts.t[row])
        record = texts[label]
        found.append(
            {
                "task": record["task"],
                "trajectory": label,
                "turn": t + 1,
                "action": record["turns"][t]["action"],
                "success": record["success"],
                "one": float(one[row]),
                "other": float(other[row]),
            }
        )
    return found
