"""CPPO: only the attempts with the largest absolute advantage are learned from, and the room is given to attempts at more tasks.

Two parts. The plan collects more groups. The schedule leaves attempts out after credit was computed, so that every attempt of a group,
also one that is left out, counts in the group's mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.columns import credit_of
from turnwise.data.rollouts import Bools, Floats, Ints, Rollouts
from turnwise.methods.planning import Plain, Rounds, TaskSlots
from turnwise.methods.registry import Brings, kl_loss, method, plan, schedule
from turnwise.methods.steps import ScheduleView, Sequences, Step, Unit, cut
from turnwise.util.errors import TurnwiseError

ROUNDING = 1e-9  # so that 10 · (1 − 0.9) is 1
Prune = Annotated[float, Help("share of attempts that are not learned from", low=0, high=0.99)]
Within = Annotated[Literal["group", "batch"], Help("what the share is of: each group (the paper) or the whole batch (the code)")]


@method(
    "cppo",
    paper="Lin et al. 2025, CPPO, arXiv 2503.22342",
    changes="plan, schedule",
    costs="1 / (1 − prune) times the rollouts; the update costs the same",
    evidence="code; per group from the paper",
)
def cppo(*, prune: Prune = 0.5, within: Within = "group", fill: Annotated[bool, Help("collect more groups")] = True) -> dict[str, Any]:
    """GRPO on the attempts with the largest advantage, either way; the freed room goes to attempts at further tasks."""
    settings: dict[str, Any] = {"credit.name": "grpo", "schedule.name": "cppo", "schedule.prune": prune, "schedule.within": within}
    settings |= {"plan.name": "cppo", "plan.prune": prune} if fill else {}
    authors = {"objective.name": "clip", "objective.aggregation": "turn", "objective.entropy_coef": 0.0, "credit.norm": "std"}
    return Brings(settings, authors | kl_loss(0.04))


@plan("cppo")
@dataclass(kw_only=True, eq=False)
class Allocated(Plain):
    """Collect more groups: as many attempts remain after pruning as there would be without."""

    prune: Prune = 0.5

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        return (yield from super().gather(slots, int(groups / (1 - self.prune) + ROUNDING)))


@schedule("cppo")
def pruned(
    view: ScheduleView,
    *,
    prune: Prune = 0.5,
    within: Within = "group",
    epochs: Annotated[int, Help("passes over the batch", low=1)] = 1,
    minibatches: Annotated[int, Help("optimiser steps per pass", low=1)] = 1,
    minibatch_size: Annotated[int | None, Help("instead: about this many units per step", low=1)] = None,
    minibatch_unit: Annotated[Unit, Help("what a mini-batch is made of: whole trajectories, or turns")] = "trajectory",
) -> list[Step]:
    """Shuffled mini-batches of the trajectories with the largest absolute advantage; the others are not learned from."""
    kept = largest(view.batch.rollouts, prune, within)
    which = np.flatnonzero(kept[view.sequences.trajectory])
    sizes = np.diff(view.sequences.offsets)[which]
    left = Sequences(view.sequences.trajectory[which], view.sequences.rows_of(which), np.concatenate([[0], np.cumsum(sizes)]))
    return [
        Step(rows=left.rows_of(part))
        for epoch in range(epochs)
        for part in cut(left, minibatch_unit, (view.seed % 2**63, epoch), minibatch_size, minibatches)
    ]


def largest(rollouts: Rollouts, prune: float, within: str = "group") -> Bools:
    """By trajectory code: whether it is among those with the largest mean absolute advantage, at least one. Of equals the earlier ones."""
    given = credit_of(rollouts)
    if given is None:
        raise TurnwiseError("schedule 'cppo' needs advantages, and this batch has none: a credit function adds them")
    size = len(rollouts.trajectory_labels)
    turns = np.bincount(rollouts.trajectory, minlength=size)
    score: Floats = np.bincount(rollouts.trajectory, np.abs(given.by_turn(rollouts)), size) / turns
    group: Ints = rollouts.column("trajectory.group") if within == "group" else np.zeros(size, np.int64)
    order = np.lexsort((np.arange(size), -score, group))
    members = np.bincount(group)
    first = np.cumsum(members) - members
    room = np.maximum(1, np.floor(members * (1 - prune) + ROUNDING))
    kept = np.zeros(size, np.bool_)
    kept[order] = np.arange(size) - first[group[order]] < room[group[order]]
    return kept
