"""A schedule's step becomes sequences and masks.

A step names turns, trajectories and tokens of the batch; what is computed are whole sequences. A sequence that contains one chosen turn
is read from its start, and its other tokens are masked: they are context, and count in no average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Ints
from turnwise.learn.packing import Packed
from turnwise.methods.steps import REFRESHED, Sequences, Step
from turnwise.util.errors import TurnwiseError

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Selection:
    """What a step is made of: sequences in the order in which they are computed, and which of all packed tokens and turns count."""

    sequences: Ints
    tokens: Mask
    turns: Mask


def with_masks(packed: Packed, batch: Batch) -> Packed:
    """`packed` with the batch's own masks as columns `kept`: `turn.mask` and `token.mask` are true where a token is learned from."""
    tokens, turns = np.ones(len(packed.turn), np.bool_), np.ones(len(packed.turn_row), np.bool_)
    if batch.has("turn.mask"):
        mask = _flags(batch.column("turn.mask"), len(batch.rollouts), "the column turn.mask", "turn")
        tokens, turns = mask[packed.turn], mask[packed.turn_row]
    if batch.has("token.mask"):
        tokens = tokens & _token_flags(batch, batch.column("token.mask"), "the column token.mask")[packed.index]
        turns = turns & has_token(packed, tokens)
    return packed.with_columns(kept=tokens).with_turn_columns(kept=turns)


def worth_reading(packed: Packed, turns_count: bool) -> Ints:
    """The sequences with something to learn from: a token that counts or, for a critic of turns, a turn that does."""
    return np.flatnonzero(_counts(packed, packed.columns["kept"], packed.turn_columns["kept"], turns_count))


def sequences_of(packed: Packed) -> Sequences:
    """How the batch is packed, as a schedule sees it."""
    return Sequences(packed.sequence_trajectory, packed.turn_row, packed.turn_offsets)


def select(packed: Packed, batch: Batch, step: Step, turns_count: bool) -> Selection:
    """The step's sequences and masks."""
    for name in step.refresh:
        if name not in REFRESHED:
            raise TurnwiseError(f"a step cannot refresh {name!r}; it can refresh {', '.join(REFRESHED)}")
    tokens, turns = packed.columns["kept"], packed.turn_columns["kept"]
    rows = _rows(batch, step)
    order: Ints | None = None
    if rows is not None:
        chosen = np.zeros(len(batch.rollouts), np.bool_)
        chosen[rows] = True
        tokens, turns = tokens & chosen[packed.turn], turns & chosen[packed.turn_row]
        order = _in_order(packed, rows, len(batch.rollouts))
    if step.mask is not None:
        tokens = tokens & _token_flags(batch, step.mask, "a step's mask")[packed.index]
        turns = turns & has_token(packed, tokens)
    read = _counts(packed, tokens, turns, turns_count)
    return Selection(np.flatnonzero(read) if order is None else order[read[order]], tokens, turns)


def _rows(batch: Batch, step: Step) -> Ints | None:
    rollouts = batch.rollouts
    rows = None if step.rows is None else _numbers(step.rows, len(rollouts), "row")
    if step.trajectories is None:
        return rows
    wanted = _numbers(step.trajectories, len(rollouts.trajectory_labels), "trajectory")
    if rows is not None:
        return rows[np.isin(rollouts.trajectory[rows], wanted)]
    place = np.full(len(rollouts.trajectory_labels), len(wanted))
    place[wanted[::-1]] = np.arange(len(wanted))[::-1]
    own = np.flatnonzero(place[rollouts.trajectory] < len(wanted))
    return own[np.argsort(place[rollouts.trajectory[own]], kind="stable")]


def _numbers(given: Any, size: int, what: str) -> Ints:
    """Numbers of turns or trajectories; a mask over all of them also works."""
    array = np.asarray(given)
    if array.dtype == np.bool_ and array.shape == (size,):
        return np.flatnonzero(array)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= size:
        raise TurnwiseError(f"a step's {what} numbers are integers from 0 to {size - 1}, or a mask over all {size}, not {str(given)[:80]}")
    return array.astype(np.int64, copy=False)


def _in_order(packed: Packed, rows: Ints, size: int) -> Ints:
    """The sequences of these rows, each once, in the order of their first row."""
    home = np.full(size, -1)
    home[packed.turn_row] = np.repeat(np.arange(len(packed)), np.diff(packed.turn_offsets))
    owners = home[rows]
    found, first = np.unique(owners[owners >= 0], return_index=True)
    return found[np.argsort(first)]


def _counts(packed: Packed, tokens: Mask, turns: Mask, turns_count: bool) -> Mask:
    """The sequences in which something counts."""
    numbers = np.arange(len(packed))
    read = np.zeros(len(packed), np.bool_)
    read[np.repeat(numbers, np.diff(packed.token_offsets))[tokens]] = True
    if turns_count:
        read[np.repeat(numbers, np.diff(packed.turn_offsets))[turns]] = True
    return read


def has_token(packed: Packed, tokens: Mask) -> Mask:
    """For each packed turn whether one of its tokens counts; a turn without a response has none that could be masked."""
    size = int(packed.turn_row.max()) + 1 if len(packed.turn_row) else 0
    masked, kept = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    masked[packed.turn[~tokens]] = True
    kept[packed.turn[tokens]] = True
    has: Mask = (kept | ~masked)[packed.turn_row]
    return has


def _token_flags(batch: Batch, mask: Any, what: str) -> Mask:
    tokens = batch.rollouts.tokens
    return _flags(mask, 0 if tokens is None else int(tokens.sum()), what, "token")


def _flags(mask: Any, size: int, what: str, level: str) -> Mask:
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (size,):
        raise TurnwiseError(f"{what} has shape {array.shape} and holds {array.dtype}: one true or false per {level} ({size},) is needed")
    return array
