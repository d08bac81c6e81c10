"""Scores of groups, and which of them are kept: top-k, top-p and min-p. Functions that any plan can use.

top_k   a share of all groups
top_p   the shortest prefix that holds a share of the total score (mass="linear") or of its softmax (mass="softmax")
min_p   all groups with at least a share of the best score
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from turnwise.data.rollouts import Floats, Ints, Trajectory, alike

Strategy = Literal["top_k", "top_p", "min_p"]
Mass = Literal["linear", "softmax"]
Metric = Literal["reward_std", "reward_mean", "reward_sum", "entropy", "entropy_std", "length"]
Prefer = Literal["largest", "smallest"]
TINY = 1e-10  # scores up to this count as 0


def score(group: Sequence[Trajectory], metric: Metric = "reward_std") -> float:
    """The score of one group: of its attempts' returns, mean entropies or lengths, the mean, the sum or the sample deviation."""
    if metric == "length":
        values = [float(sum(len(turn.response_ids) for turn in one.turns)) for one in group]
    elif metric.startswith("entropy"):
        values = [_entropy(one) for one in group]
    else:
        values = [one.reward for one in group]
    if metric.endswith("_std"):
        return 0.0 if alike(values) else float(np.std(values, ddof=1))
    return float(np.sum(values) if metric == "reward_sum" else np.mean(values))


def select(
    scores: Sequence[float],
    strategy: Strategy = "top_p",
    keep: float = 0.9,
    mass: Mass = "linear",
    prefer: Prefer = "largest",
    zero: bool = False,
    slack: float = 0.01,
) -> Ints:
    """The numbers of the groups that are kept, in order. Of equal scores the earlier groups come first."""
    values = np.asarray(scores, np.float64)
    left = np.flatnonzero(zero | (np.abs(values) > TINY))
    if not len(left):
        return left
    sign = 1.0 if prefer == "largest" else -1.0
    if strategy == "min_p":
        return np.asarray(left[_near_best(values[left], keep, prefer)])
    ordered = left[np.argsort(-sign * values[left], kind="stable")]
    if strategy == "top_k":
        count = max(1, int(keep * len(values)))
    elif keep >= 1:
        count = len(left)
    elif mass == "softmax":
        share = np.exp(sign * values[ordered] - (sign * values[ordered]).max())
        count = int(np.searchsorted(np.cumsum(share / share.sum()), keep)) + 1
    else:
        count = _prefix(values[ordered], keep * values[left].sum() - slack)
    return np.sort(ordered[:count])


def _near_best(values: Floats, keep: float, prefer: Prefer) -> Any:
    """Which scores are within a share of the best one."""
    if prefer == "largest":
        return values >= keep * values.max() - TINY
    return keep * values <= values.min() + TINY


def _prefix(ordered: Floats, threshold: float) -> int:
    """How many of the scores, from the front, add up to the threshold. Scores of 0 and below never help; 0 if it is out of reach."""
    positive = np.cumprod(ordered > 0).sum()
    sums = np.concatenate([np.zeros(1), np.cumsum(ordered[:positive])])
    reached = np.flatnonzero(sums >= threshold)
    return int(reached[0]) if len(reached) else 0


def _entropy(trajectory: Trajectory) -> float:
    """The mean over turns of the mean entropy of a turn's tokens, as the engine reported it."""
    means = [float(np.mean(turn.reports["entropy"])) for turn in trajectory.turns if len(turn.reports.get("entropy", ()))]
    return float(np.mean(means)) if means else 0.0
