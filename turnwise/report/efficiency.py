"""How fast runs learn: mean curves with bands, and what it cost until a success was first measured.

A run that never got there has no number, and leaving it out would flatter the group. It counts as later than every run that did, so the
median over seeds is a number only where more than half of the runs got there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.report.records import Point
from turnwise.report.statistics import t_interval

MEASURES = ("iteration", "turns", "tokens", "seconds")


@dataclass(frozen=True)
class Curve:
    """Success over iterations, mean over seeds, with Student's band (no band for a single run)."""

    iterations: list[int] = field(default_factory=list)
    success: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Cost:
    """Until `target` was first reached: the median over seeds, the least and the most of each measure. Infinite: not reached."""

    target: float
    runs: int
    reached: int
    median: dict[str, float]
    least: dict[str, float]
    most: dict[str, float]


def mean_curve(curves: Sequence[Sequence[Point]]) -> Curve:
    """Over the iterations that all runs have: where one is missing, a mean of the others would be a mean of survivors."""
    if not curves or not all(curves):
        return Curve()
    shared, means, lows, highs = over_seeds([{point.iteration: point.success for point in curve} for curve in curves])
    return Curve(shared, means, [max(0.0, low) for low in lows], [min(1.0, high) for high in highs])


def over_seeds(runs: Sequence[Mapping[int, float]]) -> tuple[list[int], list[float], list[float], list[float]]:
    """Values by iteration of several runs: the iterations that all of them have, there the mean, and the ends of Student's band."""
    shared = sorted(set.intersection(*(set(values) for values in runs)))
    rows = [[values[iteration] for values in runs] for iteration in shared]
    means = [math.fsum(row) / len(row) for row in rows]
    bands = [t_interval(row) or (mean, mean) for row, mean in zip(rows, means, strict=True)]
    return shared, means, [low for low, _ in bands], [high for _, high in bands]


def cost_until(curves: Sequence[Sequence[Point]], target: float) -> Cost | None:
    """The cost of a success rate; none where there are no curves."""
    if not curves or not all(curves):
        return None
    first = [next((point for point in curve if point.success >= target), None) for curve in curves]
    values = {name: sorted(math.inf if point is None else float(getattr(point, name)) for point in first) for name in MEASURES}
    return Cost(
        target=target,
        runs=len(curves),
        reached=sum(point is not None for point in first),
        median={name: _median(row) for name, row in values.items()},
        least={name: row[0] for name, row in values.items()},
        most={name: row[-1] for name, row in values.items()},
    )


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
