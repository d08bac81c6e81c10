"""What a schedule is made of: the view of a batch that it gets, and the steps that it asks for; and `shuffled`, the usual one.

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
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnwise.config.options import Help
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Ints, ragged
from turnwise.methods.registry import schedule

REFRESHED = ("old_logprob",)  # what a step can ask to be computed again
Unit = Literal["trajectory", "turn"]


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


@schedule("shuffled")
def shuffled(
    view: ScheduleView,
    *,
    epochs: Annotated[int, Help("passes over the batch", low=1)] = 1,
    minibatches: Annotated[int, Help("optimiser steps per pass", low=1)] = 1,
    minibatch_size: Annotated[int | None, Help("instead: about this many units per step", low=1)] = None,
    minibatch_unit: Annotated[Unit, Help("what a mini-batch is made of: whole trajectories, or turns")] = "trajectory",
) -> list[Step]:
    """Shuffled mini-batches of whole trajectories or turns, in one or more passes over the batch."""
    return [
        Step(rows=view.sequences.rows_of(part))
        for epoch in range(epochs)
        for part in cut(view.sequences, minibatch_unit, (view.seed % 2**63, epoch), minibatch_size, minibatches)
    ]


def cut(sequences: Sequences, unit: Unit, seed: Any, size: int | None = None, steps: int = 1) -> list[Ints]:
    """The sequences of each optimiser step, shuffled by `seed` and as equal in size as can be: `steps` parts, or, where `size` is given,
    parts of about that many trajectories or turns.

    A trajectory's sequences stay together with unit "trajectory". With "turn", a sequence that holds several turns (full context) moves
    as one and counts as many.
    """
    if len(sequences) == 0:
        return []
    owner = sequences.trajectory if unit == "trajectory" else np.arange(len(sequences))
    _, code = np.unique(owner, return_inverse=True)
    order = np.random.default_rng(seed).permutation(int(code.max()) + 1)
    counts = np.ones(len(order), np.int64) if unit == "trajectory" else np.diff(sequences.offsets)
    total = int(counts.sum())
    steps = min(total, max(1, round(total / size))) if size is not None else min(total, steps)
    place, step_of = np.empty_like(order), np.empty_like(order)
    place[order] = np.arange(len(order))
    step_of[order] = (np.cumsum(counts[order]) - counts[order]) * steps // total
    shuffled = np.argsort(place[code], kind="stable")
    cuts = np.searchsorted(step_of[code][shuffled], np.arange(1, steps))
    return [part for part in np.split(shuffled, cuts) if len(part)]
