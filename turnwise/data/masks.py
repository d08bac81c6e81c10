"""Which turns are learned from. `turn.mask` and `token.mask` are columns of a batch: true where the loss counts, false where it does not.

A branch starts from a turn of another trajectory, its parent, and holds the parent's turns up to there: their prompts and responses are the
same tokens. `collect.shared_prefix` says how often such turns are learned from: "each" time they occur, or "once". That is in the parent,
where the parent is in the same batch; where it is not, in that one of its branches which holds most of its turns. Tokens that
were put into a response, and not drawn by the policy, are not learned from.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from turnwise.data.anchors import Ints
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Bools, Trajectory

SharedPrefix = Literal["once", "each"]
MASK = "turn.mask"
INSERTED = "inserted"  # a report: 1 for tokens that were put into a response and not drawn


def own_turns(trajectory: Any, t: Any, parent: Any, branch_t: Any) -> Bools:
    """True for turns that no parent in the batch holds as well. `trajectory` and `t` have one entry per turn; `parent` (the number of the
    trajectory that was branched from; -1: none in the batch) and `branch_t` (the branch's first own turn) one per trajectory."""
    number = np.asarray(trajectory)
    shared = (np.asarray(parent)[number] >= 0) & (np.asarray(t) < np.asarray(branch_t)[number])
    unshared: Bools = ~shared
    return unshared


def masked(batch: Batch, rule: SharedPrefix) -> Batch:
    """The batch with masks of what is learned from: shared turns by this rule, and no token that was put into a response. A mask that is
    there already stays: a turn or token must pass both."""
    masks: dict[str, Bools] = {}
    if batch.has(f"token.{INSERTED}"):
        masks["token.mask"] = batch.column(f"token.{INSERTED}") == 0
    if rule == "once" and batch.has("trajectory.parent"):
        rollouts = batch.rollouts
        masks[MASK] = own_turns(rollouts.trajectory, rollouts.t, _holders(batch), batch.column("trajectory.branch_t"))
    both = {name: mask & batch.column(name) if batch.has(name) else mask for name, mask in masks.items()}
    return batch.with_columns({name: mask for name, mask in both.items() if not mask.all()})


def _holders(batch: Batch) -> Ints:
    """For each trajectory, the number of the one that its shared turns are learned from in; -1: none but itself. That is the parent, or,
    for branches of a parent outside the batch, the longest branch with the same turns."""
    holders = np.array(batch.column("trajectory.parent"))
    siblings: dict[Any, list[tuple[int, Trajectory]]] = {}
    for trajectory, number in zip(batch.trajectories, batch.numbers.tolist(), strict=True):
        if trajectory.parent is not None and holders[number] < 0:
            siblings.setdefault(trajectory.parent, []).append((number, trajectory))
    for branches in siblings.values():
        longest, whole = max(branches, key=lambda one: one[1].branch_t)
        for number, trajectory in branches:
            if number != longest and _same_turns(trajectory, whole):
                holders[number] = longest
    return holders


def _same_turns(branch: Trajectory, other: Trajectory) -> bool:
    """Whether another branch begins with the shared turns of this one. (Parents of different batches may have the same id.)"""
    pairs = zip(branch.turns[: branch.branch_t], other.turns[: branch.branch_t], strict=True)
    return all(
        list(a.response_ids) == list(b.response_ids) and list(a.prompt_ids) == list(b.prompt_ids) and a.action == b.action for a, b in pairs
    )
