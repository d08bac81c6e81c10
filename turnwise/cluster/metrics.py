"""What the source of a cluster logs: the age of groups, how far the policy has moved since, what was dropped, and which parts idled.

Pure functions on arrays. docs/reference/metrics.md explains every name.

    ages = group_ages(version, group, learned_with=iteration - 1)
    log("cluster", age_metrics(ages) | ratio_metrics(old_logprob - sampled_logprob) | drop_metrics(before, scheduler.counts))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from turnwise.util.errors import TurnwiseError

QUANTILES = {"ratio_q01": 0.01, "ratio_q50": 0.5, "ratio_q99": 0.99}
DROPS = {
    "stale": "stale_groups",
    "failed": "failed_groups",
    "retried": "repeated_groups",
    "ignored": "late_answers",
}


def group_ages(version: ArrayLike, group: ArrayLike, learned_with: int) -> np.ndarray:
    """Updates between the oldest turn of each group and the weights that learn from it. `version` and `group` have an entry per turn; the
    result has one per group, in the order of their ids."""
    versions, groups = np.asarray(version), np.asarray(group)
    if versions.shape != groups.shape:
        raise TurnwiseError(f"ages: {versions.shape} versions and {groups.shape} groups; give one of each per turn")
    ids, places = np.unique(groups, return_inverse=True)
    oldest = np.full(len(ids), np.iinfo(np.int64).max)
    np.minimum.at(oldest, places, versions.astype(np.int64))
    return learned_with - oldest


def age_metrics(ages: ArrayLike) -> dict[str, Any]:
    """Mean, maximum, and the share of groups of each age. Nothing if there are no groups."""
    values = np.asarray(ages)
    if not values.size:
        return {}
    distinct, number = np.unique(values, return_counts=True)
    shares = {str(age): float(one) / values.size for age, one in zip(distinct.tolist(), number, strict=True)}
    return {"age": float(values.mean()), "age_max": float(values.max()), "ages": shares}


def ratio_metrics(log_ratio: ArrayLike) -> dict[str, float]:
    """Of the ratios between the policy that learns and the one that sampled, one per token: quantiles, and the effective sample share."""
    values = np.asarray(log_ratio, np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return {}
    quantiles = np.exp(np.quantile(values, list(QUANTILES.values())))
    return dict(zip(QUANTILES, quantiles.tolist(), strict=True)) | {"effective_share": effective_share(values)}


def effective_share(log_weights: ArrayLike) -> float:
    """(Σw)² / (n Σw²): 1 if all weights are equal, 1/n if one outweighs all others."""
    values = np.asarray(log_weights, np.float64)
    if not values.size:
        return 1.0
    weights = np.exp(values - values.max())
    return float(weights.sum() ** 2 / (values.size * np.square(weights).sum()))


def drop_metrics(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, float]:
    """How groups ended between two readings of `Scheduler.counts`."""
    new = {name: after[name] - before.get(name, 0) for name in after}
    ended = new["accepted"] + new["stale"] + new["failed"]
    shares = {"dropped_share": (new["stale"] + new["failed"]) / ended} if ended else {}
    return {name: float(new[kind]) for kind, name in DROPS.items()} | shares


def idle_metrics(worked: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Share of idle time by part, from the seconds of this time in which it has worked."""
    return {part: min(max(1 - own / max(seconds, 1e-9), 0.0), 1.0) for part, own in worked.items()}
