"""Which process computes which sequences.

Sequences (or all sequences of a trajectory, if they must stay together) are dealt out longest first, each to the process with the fewest
tokens so far. Every process then cuts its own into micro-batches. All of this is arithmetic on numbers that every process has, so nothing
is exchanged. Passes over a sharded model are made together, so all processes need the same number of micro-batches: those with fewer get
empty ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from turnwise.data.rollouts import Ints, ragged
from turnwise.learn.forward import PackedModel
from turnwise.learn.packing import Packed, microbatches
from turnwise.learn.ranks.group import Ranks

T = TypeVar("T")
Array = NDArray[Any]


def dealt(packed: Packed, size: int, whole_trajectories: bool = False) -> list[Ints]:
    """The sequences of each process, in their order."""
    owner = np.arange(len(packed))
    if whole_trajectories and len(packed):
        owner = np.unique(packed.sequence_trajectory, return_inverse=True)[1].reshape(-1)
    tokens = np.bincount(owner, weights=packed.lengths).astype(np.int64)
    taker = np.zeros(len(tokens), np.int64)
    load = [(0, rank) for rank in range(size)]
    for unit in np.argsort(-tokens, kind="stable").tolist():
        used, rank = load[0]
        taker[unit] = rank
        heapq.heapreplace(load, (used + int(tokens[unit]), rank))
    return [np.flatnonzero(taker[owner] == rank) for rank in range(size)]


def shares(packed: Packed, tokens: int, size: int, whole_trajectories: bool = False) -> list[list[Ints]]:
    """The micro-batches of each process: the same number for all, empty ones last."""
    found = [microbatches(packed, own, tokens, whole_trajectories) for own in dealt(packed, size, whole_trajectories)]
    count = max(map(len, found))
    return [own + [np.zeros(0, np.int64)] * (count - len(own)) for own in found]


def shortest(packed: Packed) -> Packed:
    """What a process reads in an empty micro-batch: the shortest sequence of the batch."""
    return packed.take([int(np.argmin(packed.lengths))])


def passes(
    policy: PackedModel,
    ranks: Ranks | None,
    packed: Packed,
    tokens: int,
    kind: str,
    work: Callable[[Packed], T],
    idle: Callable[[Packed], Any],
    whole_trajectories: bool = False,
) -> list[T]:
    """`work` on this process's micro-batches, or on all if there is one process; `idle` on a sequence that does not count, where another
    process has one micro-batch more. `kind` names passes that exchange the same weights."""
    if ranks is None:
        return [work(packed.take(part)) for part in microbatches(packed, np.arange(len(packed)), tokens, whole_trajectories)]
    own = shares(packed, tokens, ranks.size, whole_trajectories)[ranks.rank]
    if policy.sharded is None:
        return [work(packed.take(part)) for part in own if len(part)]
    parts = [packed.take(part) if len(part) else None for part in own]
    found: list[T] = policy.sharded.lockstep.each(kind, parts, work, lambda: idle(shortest(packed)))
    return found


def restored(ranks: Ranks | None, packed: Packed, own: Mapping[str, Array], offsets: Mapping[str, Ints]) -> dict[str, Array]:
    """Columns of all sequences, in the order of `packed`, from those of every process's own. `offsets`: where the entries of each
    sequence start in a column."""
    if ranks is None:
        return dict(own)
    everywhere, mine = ranks.gather(dict(own)), dealt(packed, ranks.size)
    found: dict[str, Array] = {}
    for name, starts in offsets.items():
        given = [columns.get(name) for columns in everywhere]
        like = next(column for column in given if column is not None)
        found[name] = np.zeros((int(starts[-1]), *like.shape[1:]), like.dtype)
        for column, sequences in zip(given, mine, strict=True):
            if column is not None:
                found[name][ragged(starts, sequences)] = column
    return found
