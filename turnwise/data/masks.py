"""Which turns are learned from. `turn.mask` and `token.mask` are columns of a batch: true where the loss counts, false where it does not.

A branch starts from a turn of another trajectory, its parent, and holds the parent's turns up to there: their prompts and responses are the
same tokens. `collect.shared_prefix` says how often such turns are learned from: "each" time they occur, or "once", in the parent, where
the parent is in the same batch. Tokens that were put into a response, and not drawn by the policy, are not learned from.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Bools

SharedPrefix = Literal["once", "each"]
MASK = "turn.mask"
INSERTED = "inserted"  # a report: 1 for tokens that were put into a response and not drawn


def own_turns(trajectory: Any, t: Any, parent: Any, branch_t: Any) -> Bools:
    """True for turns that no parent in the batch holds as well. `trajectory` and `t` have one entry per turn; `parent` (the number of the
    trajectory that was branched from; -1: none in the batch) and `branch_t` (the branch's first own turn) one per trajectory."""
    number = np.asarray(trajectory)
    shared = (np.asarray(parent)[number] >= 0) & (np.asarray(t) < np.asarray(branch_t)[number])
    own: Bools = ~shared
    return own


def with_shared_prefix(batch: Batch, rule: SharedPrefix) -> Batch:
    """The batch with a mask by this rule. A mask that is there already stays: a turn must pass both."""
    if rule == "each" or not batch.has("trajectory.parent"):
        return batch
    rollouts = batch.rollouts
    own = own_turns(rollouts.trajectory, rollouts.t, batch.column("trajectory.parent"), batch.column("trajectory.branch_t"))
    if batch.has(MASK):
        own = own & batch.column(MASK)
    return batch if own.all() else batch.with_columns({MASK: own})


def without_inserted(batch: Batch) -> Batch:
    """The batch with a mask that leaves out tokens which were put into a response. A mask that is there already stays."""
    if not batch.has(f"token.{INSERTED}"):
        return batch
    drawn = batch.column(f"token.{INSERTED}") == 0
    if batch.has("token.mask"):
        drawn = drawn & batch.column("token.mask")
    return batch if drawn.all() else batch.with_columns({"token.mask": drawn})
