"""Results per question set and their mean, from the trajectories of an evaluation.

The mean is over the sets, each counting once, as is usual in this field: a set of 12,000 questions must not dominate one of 125. F1 and
searches come from the environment's `info` of the last turn; an attempt that ended with a fault counts as 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from turnwise.data.rollouts import Trajectory

MEASURES = ("em", "f1", "searches")


def set_results(trajectories: Iterable[Trajectory]) -> dict[str, dict[str, float]]:
    """For each set its number of attempts `n`, the means `em`, `f1` and `searches`; under `mean` the mean of those over the sets."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for trajectory in trajectories:
        last = trajectory.turns[-1].info.get("env", {}) if trajectory.turns else {}
        rows[trajectory.task.partition("/")[0]].append({**last, "em": float(trajectory.success)})
    results = {name: _means(found) for name, found in sorted(rows.items())}
    if results:
        overall = {key: sum(row[key] for row in results.values()) / len(results) for key in MEASURES}
        results["mean"] = {"n": sum(row["n"] for row in results.values())} | overall
    return results


def _means(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {"n": len(rows)} | {key: sum(float(row.get(key, 0.0)) for row in rows) / len(rows) for key in MEASURES}
