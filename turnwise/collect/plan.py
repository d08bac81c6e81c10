"""Which tasks are attempted when: groups of N attempts at one task, in an order fixed by the seed.

Every group of a run has a *place*, counted from the run's start; place and seed alone say which task it is and what chance it meets, so
a checkpoint needs to remember nothing but how many places are used up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from turnwise.collect.collector import Start
from turnwise.data.rollouts import Stop, Trajectory, alike
from turnwise.data.tasks import Task, TaskSet
from turnwise.util.seeds import Order, derive

FAULTS = (Stop.ENVIRONMENT_FAULT, Stop.ENVIRONMENT_TIMEOUT, Stop.ENGINE_FAULT, Stop.CANCELLED)


@dataclass(frozen=True)
class Plan:
    """The places of a run. A group shares the environment's seed, unless `own_seeds` gives each attempt one of its own."""

    tasks: TaskSet
    seed: int
    group_size: int
    shuffle: bool = True
    own_seeds: bool = False

    @cached_property
    def _order(self) -> Order:
        return Order(len(self.tasks), derive(self.seed, "tasks"), self.shuffle)

    def starts(self, place: int, groups: int) -> list[Start]:
        """The attempts of `groups` groups from a place on."""
        return [start for p in range(place, place + groups) for start in self._group(p)]

    def _group(self, place: int) -> list[Start]:
        task = self.tasks[self._order[place]]
        shared = derive(self.seed, "environment", place)
        return [
            Start(
                task,
                place,
                place * self.group_size + member,
                derive(shared, member) if self.own_seeds else shared,
                derive(self.seed, "policy", place, member),
            )
            for member in range(self.group_size)
        ]


def panel_starts(panel: TaskSet, seed: int, repeats: int = 1) -> list[Start]:
    """Every task of a panel, in order, each `repeats` times with chance of its own."""
    return [
        Start(task, index, index * repeats + k, derive(seed, "panel environment", task.id, k), derive(seed, "panel policy", task.id, k))
        for index, task in enumerate(panel)
        for k in range(repeats)
    ]


@dataclass
class Gathered:
    """What a strategy brings home: the trajectories to learn from, how many places it used, and counts for the log."""

    trajectories: list[Trajectory]
    places: int
    counts: dict[str, float] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)


Collect = Callable[[Sequence[Start]], list[Trajectory]]


def plain(collect: Collect, plan: Plan, place: int, groups: int) -> Gathered:
    """Collect the groups once. Attempts that ended by a fault of an environment or engine are left out, and counted."""
    trajectories = collect(plan.starts(place, groups))
    kept = [t for t in trajectories if t.stop not in FAULTS and t.turns]
    return Gathered(kept, groups, {"faults": float(len(trajectories) - len(kept))})


def dynamic(collect: Collect, plan: Plan, place: int, groups: int, refills: int = 10) -> Gathered:
    """Dynamic sampling: drop groups whose attempts all have the same return, and collect further ones in their stead, at most
    `refills` times. Never more groups than asked for; fewer where the refills did not suffice."""
    found = Gathered([], 0, {"faults": 0.0, "dropped_groups": 0.0, "refills": -1.0})
    kept_groups = 0
    while kept_groups < groups and found.counts["refills"] < refills:
        batch = plain(collect, plan, place + found.places, groups - kept_groups)
        found.places += batch.places
        found.counts["refills"] += 1
        found.counts["faults"] += batch.counts["faults"]
        returns: dict[int | str, list[float]] = {}
        for trajectory in batch.trajectories:
            returns.setdefault(trajectory.group, []).append(trajectory.reward)
        with_signal = {group for group, seen in returns.items() if not alike(seen)}
        kept_groups += len(with_signal)
        found.counts["dropped_groups"] += batch.places - len(with_signal)
        found.trajectories += [t for t in batch.trajectories if t.group in with_signal]
    return found
