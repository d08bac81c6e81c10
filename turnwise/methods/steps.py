"""What a schedule is made of: the view of a batch that it gets, and the steps that it asks for.

A schedule is a function of `(view, *, options)`, or a class whose objects are called with the view. It returns the steps of one update:

    a list        all steps are known in advance, as in `shuffled`
    a generator   each `yield Step(…)` is one optimiser step, and gives back that step's metrics as a dictionary

    @turnwise.methods.schedule("backwards")
    def backwards(view):
        '''The last turns first; each step sees the effect of the one before.'''
        t = view.batch.rollouts.t
        for turn in range(t.max(), -1, -1):
            yield Step(rows=np.flatnonzero(t == turn), refresh=("old_logprob",))

Nothing here knows torch. The learner turns a step into sequences and masks (`turnwise/learn/minibatch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Ints, ragged

REFRESHED = ("old_logprob",)  # what a step can ask to be computed again


@dataclass(frozen=True, eq=False)
class Step:
    """One optimiser step.

    rows           turns of the batch, by row, in the order in which they are computed; None: all
    trajectories   trajectories of the batch, by code (`batch.rollouts.trajectory`); with `rows`: of these rows, those in them
    mask           one true or false per token of the batch: false leaves the token out of the loss and of its averages
    columns        columns of the batch as they are for this step alone, by name: `{"turn.advantage": …}`
    refresh        "old_logprob": computed again with the current weights for this step's tokens, before the step; they keep it
    """

    rows: Any = None
    trajectories: Any = None
    mask: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    refresh: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Sequences:
    """What is read in one go. With a window context each turn is a sequence; a dialogue that only grows is one. Sequences that hold
    nothing to learn from are not among them.

    trajectory   the trajectory of each sequence, by code
    rows         the rows of all sequences' turns, one sequence after another
    offsets      where each sequence's rows start; one entry more than sequences
    """

    trajectory: Ints
    rows: Ints
    offsets: Ints

    def __len__(self) -> int:
        return len(self.trajectory)

    def rows_of(self, sequences: Any) -> Ints:
        """The rows of these sequences, in their order."""
        return self.rows[ragged(self.offsets, np.asarray(sequences, np.int64))]


@dataclass(frozen=True, eq=False)
class ScheduleView:
    """What a schedule sees: the batch with its columns, how it is packed, a seed that is this update's own, and the current weights'
    log-probs through `score()`, one per token in the batch's order."""

    batch: Batch
    sequences: Sequences
    seed: int
    score: Callable[[], NDArray[np.float32]]


Steps = Iterable[Step]  # a list, or a generator that is sent each step's metrics

__all__ = ["REFRESHED", "ScheduleView", "Sequences", "Step", "Steps"]
