"""Columns of a batch as columns of its packed tokens: the number of a turn, trajectory or group is repeated for each of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Ints
from turnwise.learn.packing import Packed
from turnwise.learn.settings import ValueSettings
from turnwise.objectives.tokens import Tokens
from turnwise.util.errors import TurnwiseError

LEVELS = ("group", "trajectory", "turn", "token")
OWN = {  # columns of a batch that the learner itself reads, and what the packed tokens call them
    "turn.advantage": "advantage",
    "token.advantage": "advantage",
    "token.old_logprob": "old_logprob",
    "token.ref_logprob": "ref_logprob",
    "token.logprob": "engine_logprob",
}
EXTRA = "extra."  # distinguishes columns that the objective reads from the learner's own
FIELDS = frozenset(field.name for field in fields(Tokens))


def key_of(name: str) -> str:
    """The name of a column in `Tokens.extra`: without the level; the whole name if tokens already have a column of that name."""
    own = name.partition(".")[2]
    return name if own in FIELDS else own


def spread(name: str, values: Any, packed: Packed, batch: Batch) -> NDArray[Any]:
    """A column of the batch, one entry per packed token. `values` are in the batch's order, at the level in its name."""
    level = name.partition(".")[0]
    place, size = _places(level, packed, batch)
    if place is None:
        raise TurnwiseError(f"column {name!r}: a name is level.name, and the level one of {', '.join(LEVELS)}")
    column = np.asarray(values)
    if column.shape != (size,) or column.dtype.kind not in "biuf":
        raise TurnwiseError(
            f"column {name!r} has shape {column.shape} and holds {column.dtype}: one number per {level} ({size},) is needed, in the "
            "batch's order"
        )
    return np.asarray(column[place])


def _places(level: str, packed: Packed, batch: Batch) -> tuple[Ints | None, int]:
    """For each packed token the index of its entry in columns of a level, and the number of entries."""
    rollouts = batch.rollouts
    if level == "token":
        return packed.index, 0 if rollouts.tokens is None else int(rollouts.tokens.sum())
    if level == "turn":
        return packed.turn, len(rollouts)
    if level == "trajectory":
        return packed.trajectory, len(rollouts.trajectory_labels)
    return (rollouts.group[packed.turn], len(rollouts.group_labels)) if level == "group" else (None, 0)


def with_read(packed: Packed, batch: Batch, reads: Iterable[str], who: str) -> Packed:
    """`packed` with the columns that an objective declares, unless the learner has them anyway."""
    found = {}
    for name in reads:
        if name in OWN:
            continue
        if not batch.has(name):
            raise TurnwiseError(
                f"{who} needs the column {name!r}, which this batch does not have: a signal that gives it adds it, or batch.with_columns(…)"
            )
        found[EXTRA + key_of(name)] = spread(name, batch.column(name), packed, batch)
    return packed.with_columns(**found)


def with_advantage(packed: Packed, batch: Batch) -> Packed:
    """`packed` with the credit of every token."""
    name = next((name for name in ("token.advantage", "turn.advantage") if batch.has(name)), None)
    if name is None:
        raise TurnwiseError("this batch has no advantages: a credit function adds the column turn.advantage or token.advantage")
    return packed.with_columns(advantage=spread(name, batch.column(name), packed, batch))


def with_targets(packed: Packed, batch: Batch, settings: ValueSettings) -> Packed:
    """`packed` with the columns that the critic's loss needs: its values from before the update, and its targets."""
    level = settings.level
    if not batch.has(f"{level}.value"):
        raise TurnwiseError(f"training the critic needs the column {level}.value, which this batch does not have: Learner.annotate adds it")
    if not batch.has(f"{level}.target"):
        raise TurnwiseError(
            f"a learner with a critic of level {level!r} needs targets for it: the column {level}.target, which a credit function with a "
            f"critic of this level gives"
        )
    return packed_targets(packed, batch, {name: batch.column(f"{level}.{name}") for name in ("value", "target")}, settings)


def packed_targets(packed: Packed, batch: Batch, given: Mapping[str, Any], settings: ValueSettings) -> Packed:
    """`packed` with `old_value` and `value_target` from columns `value` and `target` of the critic's level."""
    names = {"value": "old_value", "target": "value_target"}
    if settings.level == "token":
        return packed.with_columns(**{names[own]: spread(f"token.{own}", values, packed, batch) for own, values in given.items()})
    for own, values in given.items():
        if np.shape(values) != (len(batch.rollouts),):
            raise TurnwiseError(f"column turn.{own} has shape {np.shape(values)}; one number per turn ({len(batch.rollouts)},) is needed")
    return packed.with_turn_columns(**{names[own]: np.asarray(values)[packed.turn_row] for own, values in given.items()})


def with_overrides(packed: Packed, batch: Batch, columns: Mapping[str, Any], value: ValueSettings | None, reads: Iterable[str]) -> Packed:
    """`packed` with other values in some columns, for one step."""
    known = {name: key for name, key in OWN.items() if name != "token.logprob"} | {n: EXTRA + key_of(n) for n in reads if n not in OWN}
    for name, values in columns.items():
        if value is not None and name in (f"{value.level}.target", f"{value.level}.value"):
            packed = packed_targets(packed, batch, {name.partition(".")[2]: values}, value)
        elif name in known:
            packed = packed.with_columns(**{known[name]: spread(name, values, packed, batch)})
        else:
            raise TurnwiseError(
                f"a step gives its own column {name!r}, which nothing in this update reads. Read are: {', '.join(sorted(known))}"
            )
    return packed
