"""Turns, trajectories, and rollouts: a batch of groups as columns.

`Rollouts` holds one entry per turn in each column. Rows are identified by their columns (`group`, `trajectory`, `t`), never by their
order: `in_order()` returns the same rows sorted by group, trajectory and t. Credit functions see this order, so that a permutation
of the input permutes the output and changes nothing else. Columns are numpy arrays; ids and anchors become dense integers, and their
labels, hashes and texts are kept with them. Per-token columns are flat: the tokens of row i are at `token_offsets[i]:token_offsets[i+1]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnwise.data import columns
from turnwise.data.anchors import AnchorTable, Ints, dense, encode
from turnwise.data.images import Picture
from turnwise.data.tasks import LARGEST_REWARD
from turnwise.util.errors import TurnwiseError, unknown_name

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NOISE = 1e-12  # relative difference below which two 64-bit sums count as equal


Level = Literal["group", "trajectory", "turn", "token"]
ADVANTAGE, TARGET = "advantage", "target"  # own names of the columns that credit gives
LEVELS: tuple[Level, ...] = ("group", "trajectory", "turn", "token")  # from coarse to fine
EXTRA: dict[Level, str] = {"group": "group_extra", "trajectory": "trajectory_extra", "turn": "extra", "token": "token_extra"}
BUILT_IN = {
    f"turn.{name}": name for name in ("group", "trajectory", "t", "reward", "anchor", "valid", "next_anchor", "value", "tokens")
} | {
    "token.value": "token_value",
    "token.logprob": "token_logprob",
}


class Stop(StrEnum):
    """Why a trajectory ended."""

    DONE = "done"
    STEP_LIMIT = "step limit"
    CONTEXT_LIMIT = "context limit"
    PARSE_FAILURES = "parse failures"  # in run folders of earlier versions
    ENVIRONMENT_FAULT = "environment fault"
    ENVIRONMENT_TIMEOUT = "environment timeout"
    ENGINE_FAULT = "engine fault"
    CANCELLED = "cancelled"


FAULTS = (Stop.ENVIRONMENT_FAULT, Stop.ENVIRONMENT_TIMEOUT, Stop.ENGINE_FAULT, Stop.CANCELLED)


@dataclass(slots=True)
class Turn:
    """One prompt, one response, one action, one reward. Token ids are those that the engine sampled, never re-tokenised. `images` are the
    pictures of the prompt, in the order of their tokens. `version` is the version of the weights that sampled the response, -1 if unknown.
    `reports` holds what the engine reported about the response: by name, one number per token. `notes` holds what a plan knows about the
    turn: by name, one number, which becomes the column `turn.NAME` of a batch. `learned` is false for a turn that was given to the attempt
    and not sampled in it, such as an expert's: it is part of what the policy saw, and not of the loss."""

    anchor: Any
    reward: float = 0.0
    valid: bool = True
    observation: str = ""
    thought: str = ""
    action: str = ""
    response: str = ""
    prompt_ids: Sequence[int] = ()
    response_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    images: Sequence[Picture] = ()
    version: int = -1
    reports: Mapping[str, Sequence[float]] = field(default_factory=dict)
    notes: Mapping[str, float] = field(default_factory=dict)
    learned: bool = True


@dataclass(slots=True)
class Trajectory:
    """The turns of one attempt at one task. `id` is unique in the batch; `final_anchor` names the state after the last turn;
    `goal` is the goal as text, if the task or its first observation states it. A branch starts in the middle of another
    attempt: `parent` is the id of that one, and `branch_t` is the first turn that the branch does not share; the turns before it are
    shared."""

    group: int | str
    id: int | str
    task: str = ""
    turns: list[Turn] = field(default_factory=list)
    stop: Stop = Stop.DONE
    stop_detail: str = ""
    success: bool = False
    seed: int = 0
    final_anchor: Any = None
    goal: str = ""
    parent: int | str | None = None
    branch_t: int = 0

    @property
    def reward(self) -> float:
        """The sum of the turns' rewards."""
        return float(sum(turn.reward for turn in self.turns))


@dataclass(frozen=True, eq=False)
class Rollouts:
    """A batch of groups as columns, one entry per turn. Create it with `from_columns` or `from_trajectories`; both check everything."""

    group: Ints
    trajectory: Ints
    t: Ints
    reward: Floats
    anchor: Ints
    valid: Bools
    group_labels: NDArray[Any]
    trajectory_labels: NDArray[Any]
    anchor_table: AnchorTable
    next_anchor: Ints | None = None
    success: Bools | None = None
    value: Floats | None = None
    tokens: Ints | None = None
    token_value: Floats | None = None
    token_logprob: Floats | None = None
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    token_extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    trajectory_extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    group_extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def from_columns(
        cls,
        *,
        group: Any,
        trajectory: Any,
        t: Any,
        reward: Any,
        anchor: Any,
        valid: Any = None,
        next_anchor: Any = None,
        success: Any = None,
        value: Any = None,
        tokens: Any = None,
        token_value: Any = None,
        token_logprob: Any = None,
        extra: Mapping[str, Any] | None = None,
        token_extra: Mapping[str, Any] | None = None,
    ) -> Rollouts:
        """Rollouts from sequences of equal length, one entry per turn.

        group, trajectory: ids (integers or text); a trajectory belongs to one group. t: the turn's index in its trajectory, from 0.
        reward: of this turn. anchor: the state the turn started from (text, bytes, integer or image). valid: whether the response could
        be parsed (default: all). next_anchor: the state the turn led to, None if unknown. success: of the trajectory, on each of its
        turns. value: a critic's value of the state. tokens: response tokens of the turn; token_value, token_logprob: flat, one entry per
        token, in row order. extra: further columns by name, one entry per turn. token_extra: the same, one entry per token.
        """
        return columns.read_columns(cls, locals())

    @classmethod
    def from_trajectories(cls, trajectories: Iterable[Trajectory]) -> Rollouts:
        """Rollouts from `Trajectory` objects; a trajectory without turns has no rows."""
        played = [trajectory for trajectory in trajectories if trajectory.turns]
        rows = [(trajectory, t, turn) for trajectory in played for t, turn in enumerate(trajectory.turns)]
        after = [trajectory.turns[t + 1].anchor if t + 1 < len(trajectory.turns) else trajectory.final_anchor for trajectory, t, _ in rows]
        logprobs = [logprob for _, _, turn in rows for logprob in turn.logprobs]
        tokens = [len(turn.response_ids) for _, _, turn in rows]
        return cls.from_columns(
            group=[trajectory.group for trajectory, _, _ in rows],
            trajectory=[trajectory.id for trajectory, _, _ in rows],
            t=[t for _, t, _ in rows],
            reward=[turn.reward for _, _, turn in rows],
            anchor=[turn.anchor for _, _, turn in rows],
            valid=[turn.valid for _, _, turn in rows],
            next_anchor=after,
            success=[trajectory.success for trajectory, _, _ in rows],
            tokens=tokens if any(tokens) else None,
            token_logprob=logprobs if logprobs else None,
        )

    def __len__(self) -> int:
        return len(self.t)

    def __repr__(self) -> str:
        return (
            f"Rollouts({len(self)} turns, {len(self.trajectory_labels)} trajectories, {len(self.group_labels)} groups, "
            f"{len(self.anchor_table)} distinct anchors)"
        )

    @cached_property
    def token_offsets(self) -> Ints:
        """Where each row's tokens start in the flat columns; one entry more than rows."""
        if self.tokens is None:
            raise TurnwiseError("these rollouts have no column 'tokens' (the number of response tokens of each turn)")
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.tokens)])

    @cached_property
    def positions(self) -> Ints:
        """The position of each row when rows are sorted by group, trajectory and t."""
        lengths = np.bincount(self.trajectory)
        group_of = np.empty(len(lengths), np.int64)
        group_of[self.trajectory] = self.group
        order = np.argsort(group_of, kind="stable")
        starts = np.empty(len(lengths), np.int64)
        starts[order] = np.cumsum(lengths[order]) - lengths[order]
        return starts[self.trajectory] + self.t

    @cached_property
    def is_in_order(self) -> bool:
        """Whether rows are already sorted by group, trajectory and t."""
        return bool((self.positions == np.arange(len(self))).all())

    def in_order(self) -> Rollouts:
        """The same rows sorted by group, trajectory and t, as a credit function sees them."""
        return self if self.is_in_order else self._sorted

    @cached_property
    def _sorted(self) -> Rollouts:
        order = np.empty(len(self), np.int64)
        order[self.positions] = np.arange(len(self))
        return self._reordered(order)

    def permuted(self, order: Any) -> Rollouts:
        """The same turns with row i taken from row `order[i]`; per-token columns move with their rows."""
        order = np.asarray(order, np.int64)
        if not np.array_equal(np.sort(order), np.arange(len(self))):
            raise TurnwiseError(f"'order' must contain each row number from 0 to {len(self) - 1} once")
        return self._reordered(order)

    def _reordered(self, order: Ints) -> Rollouts:
        flat = ragged(self.token_offsets, order) if self.tokens is not None else None
        changes: dict[str, Any] = {}
        for names, further, places in ((columns.BY_TURN, "extra", order), (columns.BY_TOKEN, "token_extra", flat)):
            changes |= {name: None if (own := getattr(self, name)) is None else own[places] for name in names}
            changes[further] = {name: column[places] for name, column in getattr(self, further).items()}
        return replace(self, **changes)

    def size(self, level: Level) -> int:
        """How many entries a column of this level has."""
        if level == "token":
            return int(self.token_offsets[-1])
        return {"turn": len(self), "trajectory": len(self.trajectory_labels), "group": len(self.group_labels)}[level]

    def has(self, name: str) -> bool:
        """Whether there is a column of this name, such as `token.entropy`."""
        return self._find(name) is not None

    def column(self, name: str) -> NDArray[Any]:
        """A column by level and name: `turn.reward`, `token.logprob`, `trajectory.success`, or one that was added. Entries of level
        `trajectory` and `group` are in the order of `trajectory_labels` and `group_labels`."""
        column = self._find(name)
        if column is None:
            raise unknown_name("column", name, self._all_names())
        return column

    def names(self) -> list[str]:
        """Every column that is kept, by level and name; others follow from these (`DERIVED`)."""
        built_in = [name for name in BUILT_IN if self._find(name) is not None]
        return built_in + [f"{level}.{name}" for level, attribute in EXTRA.items() for name in getattr(self, attribute)]

    def _all_names(self) -> list[str]:
        """Every column, those that follow from others included."""
        return self.names() + [name for name in DERIVED if self._find(name) is not None]

    def _find(self, name: str) -> NDArray[Any] | None:
        level, short_name = split_name(name)
        if name in BUILT_IN:
            stored: NDArray[Any] | None = getattr(self, BUILT_IN[name])
            return stored
        if name in DERIVED:
            return None if self.success is None and short_name == "success" else DERIVED[name](self)
        further: Mapping[str, NDArray[Any]] = getattr(self, EXTRA[level])
        return further.get(short_name)

    def with_columns(self, added: Mapping[str, Any]) -> Rollouts:
        """The same rollouts with further columns, each named by its level: `{"token.entropy": …}`. A built-in column is replaced. The
        number of entries is checked against the level."""
        changes: dict[str, Any] = {}
        for name, values in added.items():
            level, short_name = split_name(name)
            array = columns.checked_column(name, values, self.size(level), level)
            if name in DERIVED:
                raise TurnwiseError(f"column {name!r} follows from other columns and cannot be given")
            if name in BUILT_IN:
                changes[BUILT_IN[name]] = array.astype(getattr(self, BUILT_IN[name]).dtype) if self.has(name) else array
            else:
                changes.setdefault(EXTRA[level], dict(getattr(self, EXTRA[level])))[short_name] = array
        return replace(self, **changes)

    @property
    def advantage_level(self) -> Literal["turn", "token"] | None:
        """The level of the advantages; None before credit was given."""
        if ADVANTAGE in self.token_extra:
            return "token"
        return "turn" if ADVANTAGE in self.extra else None

    def per_trajectory(self, values: NDArray[Any]) -> NDArray[Any]:
        """One entry per trajectory of a turn column that is the same on all of its turns."""
        of_trajectory = np.empty(len(self.trajectory_labels), values.dtype)
        of_trajectory[self.trajectory] = values
        return of_trajectory

    def spread(self, name: str, level: Level) -> NDArray[Any]:
        """A column brought down to a finer level: each turn gets its trajectory's or group's entry, each token its turn's."""
        column_level, column = split_name(name)[0], self.column(name)
        if LEVELS.index(level) < LEVELS.index(column_level):
            raise TurnwiseError(
                f"column {name!r} has one entry per {column_level}; it cannot be brought to level {level}, which is coarser"
            )
        if column_level == level:
            return column
        if level == "trajectory":
            of_group: NDArray[Any] = column[self.per_trajectory(self.group)]
            return of_group
        by_turn: NDArray[Any] = column if column_level == "turn" else column[self.group if column_level == "group" else self.trajectory]
        return by_turn if level == "turn" else np.repeat(by_turn, np.diff(self.token_offsets), axis=0)

    def need(self, column: str, why: str) -> NDArray[Any]:
        """The named column; if it is missing, an error that says what needs it."""
        further = {**self.group_extra, **self.trajectory_extra, **self.extra, **self.token_extra}
        plain = further[column] if column in further else getattr(self, column, None)
        values = self._find(column) if "." in column else plain
        if values is None:
            raise TurnwiseError(
                f"{why} needs the column {column!r}, which these rollouts do not have. They have: {', '.join(self._all_names())}"
            )
        return values

    def save(self, path: str | Path) -> Path:
        """Write to one compressed file, atomically. Returns the path."""
        return columns.write(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Rollouts:
        """Read what `save` wrote. A file that is damaged, foreign or of another schema version gives a clear error."""
        return columns.read(cls, Path(path))


def split_name(name: str) -> tuple[Level, str]:
    """Level and own name of a column's full name."""
    level, _, short_name = name.partition(".")
    if level not in LEVELS or not short_name.isidentifier():
        raise TurnwiseError(
            f"column {name!r}: a column is named by its level and its own name, such as token.entropy ({', '.join(LEVELS)})"
        )
    return level, short_name


DERIVED: dict[str, Callable[[Rollouts], NDArray[Any]]] = {
    "trajectory.success": lambda rollouts: rollouts.per_trajectory(np.asarray(rollouts.success)),
    "trajectory.return": lambda rollouts: np.bincount(rollouts.trajectory, rollouts.reward, len(rollouts.trajectory_labels)),
    "trajectory.turns": lambda rollouts: np.bincount(rollouts.trajectory, minlength=len(rollouts.trajectory_labels)),
    "trajectory.group": lambda rollouts: rollouts.per_trajectory(rollouts.group),
}


def sound(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that can be learned from: they have turns, and no fault ended them."""
    return [trajectory for trajectory in trajectories if trajectory.stop not in FAULTS and trajectory.turns]


def alike(values: Any) -> bool:
    """Whether all numbers are equal up to rounding (0.1 + 0.1 + 0.1 is 0.3): a constant group, in terms of credit."""
    numbers = np.asarray(values, np.float64)
    if not len(numbers):
        return True
    return bool((np.abs(numbers - numbers[0]) <= NOISE * np.maximum(np.abs(numbers), abs(numbers[0]))).all())


def ragged(offsets: Ints, order: Ints) -> Ints:
    """The flat indices of the slices `offsets[i]:offsets[i+1]` for i in `order`, concatenated."""
    return positions(offsets[:-1][order], (offsets[1:] - offsets[:-1])[order])


def positions(starts: Ints, lengths: Ints) -> Ints:
    """The flat indices of slices that have these starts and lengths, slice after slice."""
    ends = np.cumsum(lengths)
    flat: Ints = np.arange(int(lengths.sum())) + np.repeat(starts - (ends - lengths), lengths)
    return flat


__all__ = ["LARGEST_REWARD", "NOISE", "Rollouts", "Stop", "Trajectory", "Turn", "alike", "dense", "encode", "ragged"]
