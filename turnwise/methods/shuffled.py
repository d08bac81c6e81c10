"""The usual schedule: every epoch passes over the whole batch once, shuffled, in mini-batches of nearly equal size."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.data.rollouts import Ints
from turnwise.methods.registry import schedule
from turnwise.methods.steps import ScheduleView, Sequences, Step

Unit = Literal["trajectory", "turn"]


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
