"""What a model predicts for a mini-batch, as its loss sees it: log-probs and outputs of heads with gradient, along with the batch's
columns.

Levels are named, never guessed: a column `turn.reward` has one entry per turn, and `predictions.sum(values, "token", "turn")` adds up the
tokens of each turn. So the log-ratio of an implicit process reward model and the loss on its outcome are

    ratio = predictions.sum(predictions.logprob - predictions["token.logprob"], "token", "trajectory")
    loss = binary_cross_entropy_with_logits(0.05 * ratio, predictions["trajectory.success"])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.data.rollouts import Rollouts
from turnwise.learn.packing import Packed
from turnwise.util.errors import TurnwiseError, unknown_name

LEVELS = ("token", "turn", "trajectory", "group")  # each is contained in one of the next


@dataclass(frozen=True)
class Rows:
    """The tokens, turns, trajectories and groups of a mini-batch: the position of each in the batch, and what contains it one level
    above."""

    at: Mapping[str, NDArray[np.int64]]  # by level: the entry of a batch's column
    above: Mapping[str, NDArray[np.int64]]  # by level: the number, in this mini-batch, of the one that holds it

    @classmethod
    def of(cls, packed: Packed, rollouts: Rollouts) -> Rows:
        """Of all that is in `packed`."""
        trajectories = np.unique(rollouts.trajectory[packed.turn_row])
        group_of = np.zeros(len(rollouts.trajectory_labels), np.int64)
        group_of[rollouts.trajectory] = rollouts.group
        groups = np.unique(group_of[trajectories])
        number = np.zeros(len(rollouts), np.int64)
        number[packed.turn_row] = np.arange(len(packed.turn_row))
        at = {"token": packed.index, "turn": packed.turn_row, "trajectory": trajectories, "group": groups}
        above = {
            "token": number[packed.turn],
            "turn": np.searchsorted(trajectories, rollouts.trajectory[packed.turn_row]),
            "trajectory": np.searchsorted(groups, group_of[trajectories]),
        }
        return cls(at, above)

    def path(self, low: str, high: str) -> NDArray[np.int64]:
        """For each entry of the lower level, the number of what contains it at the higher one."""
        first, last = (_level(name) for name in (low, high))
        if first > last:
            raise TurnwiseError(f"{low} is not below {high}: the levels from the ground up are {', '.join(LEVELS)}")
        found = np.arange(len(self.at[low]))
        for step, _ in pairwise(LEVELS[first : last + 1]):
            found = self.above[step][found]
        return found


def _level(name: str) -> int:
    if name not in LEVELS:
        raise unknown_name("level", name, LEVELS)
    return LEVELS.index(name)


@dataclass(frozen=True)
class Predictions:
    """`logprob`: of every response token; empty if the loss does not need it. `outputs`: the heads', by name. `rows`: which part of the
    batch this is. Columns are read like a mapping: predictions["turn.reward"]."""

    logprob: Tensor
    outputs: Mapping[str, Tensor]
    columns: Mapping[str, Tensor]
    rows: Rows

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.columns:
            known = ", ".join(sorted(self.columns)) or "none"
            raise TurnwiseError(
                f"the loss reads the column {name!r}, which it was not given (given: {known}): name it in update(…, columns=…) or `needs`"
            )
        return self.columns[name]

    def size(self, level: str) -> int:
        """How many tokens, turns, trajectories or groups these are."""
        return len(self.rows.at[LEVELS[_level(level)]])

    def sum(self, values: Tensor, low: str, high: str) -> Tensor:
        """Sums of the entries of a lower level for each one of a higher level."""
        self._check(values, low)
        index = torch.as_tensor(self.rows.path(low, high), device=values.device)
        return values.new_zeros((self.size(high), *values.shape[1:])).index_add(0, index, values)

    def mean(self, values: Tensor, low: str, high: str) -> Tensor:
        """The same with means; 0 if there is nothing to average."""
        counts = torch.as_tensor(np.bincount(self.rows.path(low, high), minlength=self.size(high)), device=values.device)
        return self.sum(values, low, high) / counts.clamp(min=1)

    def spread(self, values: Tensor, high: str, low: str) -> Tensor:
        """Each entry of a higher level, repeated for all that it contains at a lower one."""
        self._check(values, high)
        return values[torch.as_tensor(self.rows.path(low, high), device=values.device)]

    def _check(self, values: Tensor, level: str) -> None:
        if len(values) != self.size(level):
            raise TurnwiseError(f"{len(values)} values are not one per {level}: this mini-batch has {self.size(level)}")


def chosen_columns(columns: Mapping[str, NDArray[Any]], rows: Rows, device: torch.device) -> dict[str, Tensor]:
    """The entries of a batch's columns that belong to a mini-batch, as tensors."""
    found = {}
    for name, column in columns.items():
        level = name.partition(".")[0]
        _level(level)
        part = np.asarray(column)[rows.at[level]]
        found[name] = torch.as_tensor(part.astype(np.float32) if part.dtype.kind in "fb" else part, device=device)
    return found
