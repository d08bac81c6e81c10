"""Any metric of a run over training, and success by type of task: what a comparison shows in addition to success.

A track is one metric of `metrics.jsonl` in one group: its mean over seeds at every iteration that all runs of the group have, with the
least and the most of them. (Student's band, as in curves of success, could leave the range of a metric: shares below 0, for example.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwise.report.efficiency import over_seeds
from turnwise.report.groups import Group
from turnwise.util.errors import unknown_name


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


def check_metrics(names: Sequence[str], known: set[str]) -> None:
    """An error for a metric that none of the runs has."""
    for name in names:
        if name not in known:
            raise unknown_name("metric", name, sorted(known))


def tracks(groups: Sequence[Group], names: Sequence[str]) -> list[Track]:
    """One for each metric and group."""
    return [_track(group, name) for name in names for group in groups]


def _track(group: Group, name: str) -> Track:
    runs = [record.tracks.get(name, {}) for record in group.records]
    shared, means = over_seeds(runs)
    least, most = ([pick(values[iteration] for values in runs) for iteration in shared] for pick in (min, max))
    return Track(name, group.label, shared, means, least, most, math.fsum(means) / len(means) if means else None)


def types(groups: Sequence[Group]) -> list[TypeOfTask]:
    """Success by type of task, for groups that were measured in the same way; empty if tasks have no types."""
    first = groups[0].records[0]
    names = sorted({one for one in first.types if one})
    if any(record.types != first.types for group in groups for record in group.records):
        return []
    found = []
    for name in names:
        places = [place for place, one in enumerate(first.types) if one == name]
        found.append(TypeOfTask(name, len(places), [float(group.won[places].mean()) for group in groups]))
    return found
