"""From a batch to the packed tokens of one optimiser step: pure functions that `Learner.update` puts together.

A schedule's step names turns, trajectories and tokens of the batch; what is computed are whole sequences. A sequence that contains one
chosen turn is read from its start, and its other tokens are masked: they are context, and count in no average.

A turn whose credit is exactly 0 does not move the policy. With GiGPO these are all turns of a group without contrast, half of a batch
early in training. It still counts in the loss's normalisation, so it is left out of the computation only, after all weights are fixed.
That is valid if the objective vanishes with the advantage, which is tested and not assumed, and if nothing else depends on the turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Ints
from turnwise.learn.hooks import Prepares
from turnwise.learn.packing import Packed
from turnwise.learn.sections import ValueSettings
from turnwise.learn.settings import LearnerSettings
from turnwise.methods.steps import REFRESHED, Sequences, Step
from turnwise.objectives.loss import Loss
from turnwise.objectives.tokens import Tokens, token_weights
from turnwise.util.errors import TurnwiseError

Mask = NDArray[np.bool_]
LEVELS = ("group", "trajectory", "turn", "token")
LEARNER_COLUMNS = {  # columns of a batch that the learner itself reads, and what the packed tokens call them
    "turn.advantage": "advantage",
    "token.advantage": "advantage",
    "token.old_logprob": "old_logprob",
    "token.ref_logprob": "ref_logprob",
    "token.logprob": "engine_logprob",
}
EXTRA = "extra."  # distinguishes columns that the objective reads from the learner's own
REJECTED = f"{EXTRA}importance_rejected"  # prepared by an importance correction: tokens that leave the mini-batch and its denominators
FIELDS = frozenset(field.name for field in fields(Tokens))


@dataclass(frozen=True, eq=False)
class Selection:
    """What a step is made of: sequences in the order in which they are computed, and which of all packed tokens and turns count."""

    sequences: Ints
    tokens: Mask
    turns: Mask


# Columns of a batch as columns of its packed tokens.


def prepared(whole: Packed, batch: Batch, settings: LearnerSettings) -> Packed:
    """The batch's sequences with masks, advantages, critic targets and what the objective reads, without those that have nothing to learn
    from."""
    packed = with_masks(whole, batch)
    if settings.value is not None:
        packed = with_targets(packed, batch, settings.value)
    packed = packed.take(worth_reading(packed, settings.values_turns))
    packed = with_advantage(packed, batch)
    return with_read(packed, batch, settings.loss.reads, f"objective {settings.loss.objective!r}")


def with_masks(packed: Packed, batch: Batch) -> Packed:
    """`packed` with the batch's own masks as columns `in_loss`: `turn.mask` and `token.mask` are true where a token is learned from."""
    tokens, turns = np.ones(len(packed.turn), np.bool_), np.ones(len(packed.turn_row), np.bool_)
    if batch.has("turn.mask"):
        mask = _flags(batch.column("turn.mask"), len(batch.rollouts), "the column turn.mask", "turn")
        tokens, turns = mask[packed.turn], mask[packed.turn_row]
    if batch.has("token.mask"):
        tokens = tokens & _token_flags(batch, batch.column("token.mask"), "the column token.mask")[packed.index]
        turns = turns & has_token(packed, tokens)
    return packed.with_columns(in_loss=tokens).with_turn_columns(in_loss=turns)


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


def packed_targets(packed: Packed, batch: Batch, columns: Mapping[str, Any], settings: ValueSettings) -> Packed:
    """`packed` with `old_value` and `value_target` from columns `value` and `target` of the critic's level."""
    names = {"value": "old_value", "target": "value_target"}
    if settings.level == "token":
        return packed.with_columns(**{names[name]: spread(f"token.{name}", values, packed, batch) for name, values in columns.items()})
    for name, values in columns.items():
        if np.shape(values) != (len(batch.rollouts),):
            raise TurnwiseError(f"column turn.{name} has shape {np.shape(values)}; one number per turn ({len(batch.rollouts)},) is needed")
    return packed.with_turn_columns(**{names[name]: np.asarray(values)[packed.turn_row] for name, values in columns.items()})


def with_read(packed: Packed, batch: Batch, reads: Iterable[str], who: str) -> Packed:
    """`packed` with the columns that an objective declares, unless the learner has them anyway."""
    columns = {}
    for name in reads:
        if name in LEARNER_COLUMNS:
            continue
        if not batch.has(name):
            raise TurnwiseError(
                f"{who} needs the column {name!r}, which this batch does not have: a signal that gives it adds it, or batch.with_columns(…)"
            )
        columns[EXTRA + key_of(name)] = spread(name, batch.column(name), packed, batch)
    return packed.with_columns(**columns)


def with_overrides(packed: Packed, batch: Batch, columns: Mapping[str, Any], value: ValueSettings | None, reads: Iterable[str]) -> Packed:
    """`packed` with other values in some columns, for one step."""
    known = {name: key for name, key in LEARNER_COLUMNS.items() if name != "token.logprob"} | {
        n: EXTRA + key_of(n) for n in reads if n not in LEARNER_COLUMNS
    }
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


def key_of(name: str) -> str:
    """The name of a column in `Tokens.extra`: without the level; the whole name if tokens already have a column of that name."""
    short = name.partition(".")[2]
    return name if short in FIELDS else short


def spread(name: str, values: Any, packed: Packed, batch: Batch) -> NDArray[Any]:
    """A column of the batch, one entry per packed token. `values` are in the batch's order, at the level in its name."""
    level = name.partition(".")[0]
    index, size = _index_of(level, packed, batch)
    if index is None:
        raise TurnwiseError(f"column {name!r}: a name is level.name, and the level one of {', '.join(LEVELS)}")
    column = np.asarray(values)
    if column.shape != (size,) or column.dtype.kind not in "biuf":
        raise TurnwiseError(
            f"column {name!r} has shape {column.shape} and holds {column.dtype}: one number per {level} ({size},) is needed, in the "
            "batch's order"
        )
    return np.asarray(column[index])


def _index_of(level: str, packed: Packed, batch: Batch) -> tuple[Ints | None, int]:
    """For each packed token the index of its entry in columns of a level, and the number of entries."""
    rollouts = batch.rollouts
    if level == "token":
        return packed.index, 0 if rollouts.tokens is None else int(rollouts.tokens.sum())
    if level == "turn":
        return packed.turn, len(rollouts)
    if level == "trajectory":
        return packed.trajectory, len(rollouts.trajectory_labels)
    return (rollouts.group[packed.turn], len(rollouts.group_labels)) if level == "group" else (None, 0)


# The sequences and masks of a step.


def sequences_of(packed: Packed) -> Sequences:
    """How the batch is packed, as a schedule sees it."""
    return Sequences(packed.sequence_trajectory, packed.turn_row, packed.turn_offsets)


def select(packed: Packed, batch: Batch, step: Step, turns_count: bool) -> Selection:
    """The step's sequences and masks."""
    for name in step.refresh:
        if name not in REFRESHED:
            raise TurnwiseError(f"a step cannot refresh {name!r}; it can refresh {', '.join(REFRESHED)}")
    tokens, turns = packed.columns["in_loss"], packed.turn_columns["in_loss"]
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
    rank = np.full(len(rollouts.trajectory_labels), len(wanted))  # of each trajectory among those that the step names
    rank[wanted[::-1]] = np.arange(len(wanted))[::-1]
    rows = np.flatnonzero(rank[rollouts.trajectory] < len(wanted))
    return rows[np.argsort(rank[rollouts.trajectory[rows]], kind="stable")]


def _numbers(numbers: Any, size: int, what: str) -> Ints:
    """Numbers of turns or trajectories; a mask over all of them also works."""
    array = np.asarray(numbers)
    if array.dtype == np.bool_ and array.shape == (size,):
        return np.flatnonzero(array)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= size:
        raise TurnwiseError(
            f"a step's {what} numbers are integers from 0 to {size - 1}, or a mask over all {size}, not {str(numbers)[:80]}"
        )
    return array.astype(np.int64, copy=False)


def _in_order(packed: Packed, rows: Ints, size: int) -> Ints:
    """The sequences of these rows, each once, in the order of their first row."""
    sequence_of_row = np.full(size, -1)
    sequence_of_row[packed.turn_row] = np.repeat(np.arange(len(packed)), np.diff(packed.turn_offsets))
    owners = sequence_of_row[rows]
    sequences, first = np.unique(owners[owners >= 0], return_index=True)
    return sequences[np.argsort(first)]


def worth_reading(packed: Packed, turns_count: bool) -> Ints:
    """The sequences with something to learn from: a token that counts or, for a critic of turns, a turn that does."""
    return np.flatnonzero(_counts(packed, packed.columns["in_loss"], packed.turn_columns["in_loss"], turns_count))


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
    masked, counted = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    masked[packed.turn[~tokens]] = True
    counted[packed.turn[tokens]] = True
    has: Mask = (counted | ~masked)[packed.turn_row]
    return has


def _token_flags(batch: Batch, mask: Any, what: str) -> Mask:
    tokens = batch.rollouts.tokens
    return _flags(mask, 0 if tokens is None else int(tokens.sum()), what, "token")


def _flags(mask: Any, size: int, what: str, level: str) -> Mask:
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (size,):
        raise TurnwiseError(f"{what} has shape {array.shape} and holds {array.dtype}: one true or false per {level} ({size},) is needed")
    return array


# The weights of its tokens.


def with_token_weights(packed: Packed, settings: LearnerSettings) -> Packed:
    """The mini-batch with the weight of each token in the loss; those that a mask leaves out have weight 0, and are in no denominator."""
    mask = torch.as_tensor(packed.columns["in_loss"])
    weight = token_weights(packed.turn, packed.trajectory, settings.aggregation, settings.constant, mask=mask)
    return packed.with_columns(weight=weight.numpy())


def with_prepared(packed: Packed, part: Any) -> Packed:
    """The mini-batch with the columns that an objective or importance correction prepares for it, from all of its tokens at once."""
    if not isinstance(part, Prepares):
        return packed
    columns = {name.removeprefix(EXTRA): column for name, column in packed.columns.items() if name not in ("in_loss", "value_weight")}
    more = part.prepare(columns | {"turn": packed.turn, "trajectory": packed.trajectory})
    return packed.with_columns(**{f"{EXTRA}{name}": np.asarray(column) for name, column in (more or {}).items()})


def without_rejected(packed: Packed) -> Packed:
    """The mini-batch in which rejected tokens do not count. Their column becomes the share of them, which is logged."""
    before = packed.columns["in_loss"]
    in_loss = before & ~packed.columns[REJECTED].astype(np.bool_)
    share = np.full(len(in_loss), 1 - in_loss.sum() / max(before.sum(), 1), np.float32)
    packed = packed.with_columns(**{"in_loss": in_loss, REJECTED: share})
    return packed.with_turn_columns(in_loss=packed.turn_columns["in_loss"] & has_token(packed, in_loss))


# Sequences that need not be computed.


def may_skip(settings: LearnerSettings) -> bool:
    """Whether sequences without credit can be left out: nothing but the objective needs them, and it vanishes on them."""
    loss = settings.loss
    others = loss.kl_coef > 0 or loss.entropy_coef > 0 or settings.value is not None or settings.kl_stop is not None
    return not others and vanishes(loss)


def vanishes(loss: Loss) -> bool:
    """Whether the loss of an objective is 0 and flat if all advantages are 0. An objective that reads further columns, or that has a
    state, is not tested: other columns may also move it."""
    if loss.reads or loss.is_class:
        return False
    generator = torch.Generator().manual_seed(0)
    logprob, old, engine = (-3 * torch.rand(24, generator=generator) for _ in range(3))
    logprob.requires_grad_()
    place = torch.arange(24)
    tokens = Tokens(
        logprob=logprob,
        old_logprob=old,
        advantage=torch.zeros(24),
        turn=place // 3,
        trajectory=place // 6,
        weight=torch.rand(24, generator=generator),
        engine_logprob=engine,
        entropy=torch.ones(24),
    )
    try:
        value, _ = loss(tokens)
        (slope,) = torch.autograd.grad(value, logprob)
    except (RuntimeError, ValueError):  # it needs more than this, or does not depend on the log-probs: nothing is known
        return False
    return value.item() == 0 and bool((slope == 0).all())


def with_credit(packed: Packed, in_loss: Mask, whole_trajectories: bool) -> Mask:
    """True for sequences with credit other than 0 on a token that counts (with `whole_trajectories`: for all of a trajectory that has
    some)."""
    credit = (np.asarray(packed.columns["advantage"]) != 0) & in_loss  # NaN counts as credit, and is noticed later
    owner = np.repeat(np.arange(len(packed)), np.diff(packed.token_offsets))
    needed = np.bincount(owner, weights=credit, minlength=len(packed)) > 0
    if whole_trajectories:
        of_trajectory = packed.sequence_trajectory
        needed = (np.bincount(of_trajectory, weights=needed) > 0)[of_trajectory] if len(packed) else needed
    return np.asarray(needed, np.bool_)


def keep_one(needed: Mask, packed: Packed, sequences: Any) -> None:
    """If none of a step's sequences is needed, its shortest is: every optimiser step is taken, if necessary with a gradient of zeros."""
    if len(sequences) and not needed[sequences].any():
        needed[sequences[np.argmin(packed.lengths[sequences])]] = True


def sample(packed: Packed, needed: Mask, tokens: int) -> Packed:
    """Some of the needed sequences, spread over all, with about `tokens` tokens."""
    which = np.flatnonzero(needed)
    share = min(1.0, tokens / max(int(packed.lengths[which].sum()), 1))
    count = max(1, round(share * len(which)))
    return packed.take(which[np.unique(np.linspace(0, len(which) - 1, count).round().astype(np.int64))])
