"""Branching where the policy was unsure: half of a group's attempts start from the turns of the others that had the highest entropy.

    roots      `collect.group_size` attempts per group, from the start
    branches   for each group the `branches` turns with the highest entropy; one attempt starts before each of them

A branch holds the turns of its parent up to there. With `collect.shared_prefix = "once"` those are learned from in the parent only.

Use it in a recipe with

    [plan]
    name = "examples/methods/entropy_branching.py:EntropyBranching"
    branches = 4
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

import turnwise as tw
from turnwise.config.options import Help
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots


# The plan reads what the engine reported about each turn, so it needs token.entropy as a credit function would. With env.snapshot, states
# are kept and restored; without it, a branch would play its parent's actions again, which works in every environment but takes longer.
@tw.methods.plan("entropy_branching", needs=("token.entropy", "env.snapshot"))
class EntropyBranching(Plan):
    """Attempts from the start, then further ones from the turns at which the policy was least sure."""

    def __init__(
        self,
        *,
        branches: Annotated[int, Help("attempts per group that start in the middle of another one", low=0)] = 4,
        first: Annotated[int, Help("earliest turn to branch at; at 0 a branch would be a fresh attempt", low=1)] = 1,
    ):
        self.branches, self.first = branches, first

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        # A plan is a generator: yield attempts, get them back finished. The second round depends on how the first one went.
        # Attempts that a fault of an environment or engine has ended do not come back; the source counts them (collect/faults).
        roots = yield slots.groups(groups)
        starts = [start for group in by_group(roots) for start in self.branches_of(group, slots)]
        branches = (yield starts) if starts else []
        # Branches that did not arrive in their parent's state are dropped and counted by the source, as lost_branches.
        return Gathered([*roots, *branches], {"roots": float(len(roots))})

    def branches_of(self, group: list[tw.Trajectory], slots: TaskSlots) -> list:
        """One attempt from each of the group's most uncertain turns."""
        turns = [(entropy_of(turn), trajectory, t) for trajectory in group for t, turn in enumerate(trajectory.turns) if t >= self.first]
        turns.sort(key=lambda found: -found[0])  # stable: ties stay in the order of the attempts, so the same seed gives the same run
        return [start for _, trajectory, t in turns[: self.branches] for start in slots.branch(trajectory, t)]


def entropy_of(turn: tw.Turn) -> float:
    """The mean entropy of a turn's tokens, as the engine reported it; 0 for a turn without tokens."""
    reported = turn.reports.get("entropy", ())
    return float(np.mean(reported)) if len(reported) else 0.0


def by_group(trajectories: list[tw.Trajectory]) -> list[list[tw.Trajectory]]:
    """The trajectories of each group."""
    groups: dict[int | str, list[tw.Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group, []).append(trajectory)
    return list(groups.values())
