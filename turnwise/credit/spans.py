"""Credit on the tokens of another trainer: from one number per turn (or per response token) to an array in the trainer's own shape.

A trainer has tokens in a flat array, or in rows of equal width, which is the same array seen in two dimensions. A turn is a span of it:
the flat position of its first token, and how many tokens it has. Everything outside of spans (prompts, tool results, padding) gets 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.credit.diagnose import observe
from turnwise.credit.registry import Credit, assign
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Rollouts, positions
from turnwise.util.errors import TurnwiseError


def on_tokens(
    name: str | Callable[..., Any], rollouts: Rollouts, start: Any, length: Any, shape: int | tuple[int, ...], **options: Any
) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """The advantages of an algorithm in an array of this shape, and what a run logs about its credit. `start` and `length` have one entry
    per row of `rollouts`: turn i is the tokens `start[i] : start[i] + length[i]` of the flattened array."""
    credit = assign(name, rollouts, **options)
    metrics = observe(name, options, rollouts, credit.values) if isinstance(name, str) else {}
    return spread(credit, rollouts, start, length, shape), metrics


def spread(credit: Credit, rollouts: Rollouts, start: Any, length: Any, shape: int | tuple[int, ...]) -> NDArray[np.float32]:
    """Credit brought to an array of this shape: a turn's number on all tokens of its span, or each token its own; 0 elsewhere."""
    starts, lengths = np.asarray(start, np.int64), np.asarray(length, np.int64)
    size = int(np.prod(shape))
    if starts.shape != (len(rollouts),) or lengths.shape != (len(rollouts),):
        raise TurnwiseError(
            f"spans: one start and one length per turn ({len(rollouts)}) are needed, got {starts.shape} and {lengths.shape}"
        )
    wrong = (starts < 0) | (lengths < 0) | (starts + lengths > size)
    if wrong.any():
        i = int(wrong.argmax())
        raise TurnwiseError(f"spans, turn {i}: tokens {starts[i]} to {starts[i] + lengths[i]} are not inside an array of {size} tokens")
    if credit.level == "token":
        unequal = np.diff(rollouts.token_offsets) != lengths
        if unequal.any():
            i = int(unequal.argmax())
            raise TurnwiseError(f"spans, turn {i}: {lengths[i]} tokens, and its credit has {np.diff(rollouts.token_offsets)[i]} values")
        values = credit.values
    else:
        values = np.repeat(credit.values, lengths)
    flat = np.zeros(size, np.float32)
    flat[positions(starts, lengths)] = values
    return flat.reshape(shape)


def spans_of(mask: Any) -> tuple[Ints, Ints, Ints]:
    """The runs of true entries in each row of a mask (rows, width), as rows, starts in the flattened mask, and lengths; in this order. In
    a trainer's mask of sampled tokens, a run is one response."""
    marks = np.asarray(mask, bool)
    edges = np.diff(np.pad(marks, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, columns = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    return rows, rows * marks.shape[1] + columns, ends - columns


def turns_of(mask: Any) -> tuple[Ints, Ints, Ints]:
    """As `spans_of`, where a row without true entries is one turn without tokens: a response that is not trained still had a reward."""
    marks = np.asarray(mask, bool)
    rows, starts, lengths = spans_of(marks)
    empty = np.flatnonzero(~marks.any(axis=1))
    order = np.argsort(np.concatenate([rows, empty]), kind="stable")
    columns = (rows, empty), (starts, empty * marks.shape[1]), (lengths, np.zeros_like(empty))
    rows, starts, lengths = (np.concatenate(pair)[order] for pair in columns)
    return rows, starts, lengths


def turn_numbers(trajectory: Any) -> Ints:
    """For turns in order of time, the index of each in its trajectory: how many rows of the same trajectory stand before it."""
    codes = np.unique(np.asarray(trajectory), return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    numbers = np.empty(len(codes), np.int64)
    numbers[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers


def last_turns(trajectory: Any, t: Any) -> NDArray[np.bool_]:
    """Which rows are the last turn of their trajectory: where a trainer knows one reward of an attempt, this turn gets it."""
    codes = np.unique(np.asarray(trajectory), return_inverse=True)[1]
    times = np.asarray(t)
    latest = np.full(codes.max() + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, codes, times)
    last: NDArray[np.bool_] = times == latest[codes]
    return last
