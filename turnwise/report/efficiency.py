"""What a comparison shows over training: mean curves with bands, the cost until a success rate was first measured, any metric of a run;
and success by type of task.

A run that never reached it has no number, and leaving it out would flatter the group. It counts as later than every run that did, so the
median over seeds is finite only if more than half of the runs reached it. A track is one metric of `metrics.jsonl` in one group, with the
least and the most of its runs: Student's band, as in curves of success, could leave the range of a metric (shares below 0, for example).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median

from turnwise.report.groups import Group
from turnwise.runs.records import Point
from turnwise.util.statistics import Interval, share_interval

MEASURES = ("iteration", "turns", "tokens", "seconds")


@dataclass(frozen=True)
class Curve:
    """Success over iterations, mean over seeds, with Student's band (no band for a single run). If all seeds have equal results their
    spread is not 0 but unknown: there the band is the runs' own interval over tasks, or a gap (NaN) if they have none."""

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


@dataclass(frozen=True)
class Track:
    """`mean` is over seeds, iteration by iteration; `overall` also over iterations. Empty if no run of the group has the metric."""

    metric: str
    label: str
    iterations: list[int] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    overall: float | None = None


@dataclass(frozen=True)
class TypeOfTask:
    """One type of task: how many the panel has of it, and each group's success, in the order of the groups."""

    name: str
    tasks: int
    success: list[float]


def mean_curve(curves: Sequence[Sequence[Point]]) -> Curve:
    """Over the iterations that all runs have: if one is missing, a mean of the others would be a mean of survivors."""
    if not curves or not all(curves):
        return Curve()
    runs = [{point.iteration: point for point in curve} for curve in curves]
    shared, means = over_seeds([{iteration: point.success for iteration, point in run.items()} for run in runs])
    bands = [_band([run[iteration] for run in runs]) for iteration in shared]
    return Curve(shared, means, [low for low, _ in bands], [high for _, high in bands])


def _band(points: Sequence[Point]) -> Interval:
    """The band at one iteration, inside 0 to 1."""
    if (interval := share_interval([point.success for point in points])) is not None:
        return interval
    low, high = ([getattr(point, name) for point in points] for name in ("low", "high"))
    if len(points) < 2 or None in low or None in high:
        return math.nan, math.nan
    return math.fsum(low) / len(low), math.fsum(high) / len(high)


def over_seeds(runs: Sequence[Mapping[int, float]]) -> tuple[list[int], list[float]]:
    """Values by iteration of several runs: the iterations that all of them have, and there the mean."""
    shared = sorted(set.intersection(*(set(values) for values in runs)))
    rows = [[values[iteration] for values in runs] for iteration in shared]
    return shared, [math.fsum(row) / len(row) for row in rows]


def cost_until(curves: Sequence[Sequence[Point]], target: float) -> Cost | None:
    """The cost of a success rate; None if there are no curves."""
    if not curves or not all(curves):
        return None
    first = [next((point for point in curve if point.success >= target), None) for curve in curves]
    values = {name: sorted(math.inf if point is None else float(getattr(point, name)) for point in first) for name in MEASURES}
    return Cost(
        target=target,
        runs=len(curves),
        reached=sum(point is not None for point in first),
        median={name: median(row) for name, row in values.items()},
        least={name: row[0] for name, row in values.items()},
        most={name: row[-1] for name, row in values.items()},
    )


def tracks(groups: Sequence[Group], names: Sequence[str]) -> list[Track]:
    """One for each metric and group."""
    found = []
    for name, group in product(names, groups):
        runs = [record.tracks.get(name, {}) for record in group.records]
        shared, means = over_seeds(runs)
        least, most = ([pick(values[iteration] for values in runs) for iteration in shared] for pick in (min, max))
        found.append(Track(name, group.label, shared, means, least, most, math.fsum(means) / len(means) if means else None))
    return found


def types(groups: Sequence[Group]) -> list[TypeOfTask]:
    """Success by type of task, for groups that were measured in the same way; empty if tasks have no types."""
    first = groups[0].records[0]
    names = sorted({one for one in first.types if one})
    if any(record.types != first.types for group in groups for record in group.records):
        return []
    rows = {name: [row for row, kind in enumerate(first.types) if kind == name] for name in names}
    return [TypeOfTask(name, len(rows[name]), [float(group.won[rows[name]].mean()) for group in groups]) for name in names]
