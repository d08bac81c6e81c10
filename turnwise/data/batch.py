"""A batch: whole groups that are learned from together, their trajectories and everything known about them as columns.

One object travels from collecting to learning. Collecting makes it, signals and credit add columns, the learner reads them, and the run
keeps it: whoever looks at a batch later (replay, export, pages) reads what was computed once.

    batch = Batch.of(trajectories, tasks)
    batch = batch.with_columns({"token.entropy": entropies})     # the level is part of the name, never guessed from a length
    batch.column("turn.advantage")

Rows are turns. Those of the k-th trajectory are `batch.rows(k)`, one after another, so nothing has to be looked up by label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Rollouts, Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.util.errors import TurnwiseError


@dataclass(frozen=True, eq=False)
class Batch:
    """Trajectories with their tasks, and columns. Make it with `Batch.of`.

    trajectories   those that have turns, in the order of the rows
    rollouts       the columns: what credit functions see
    tasks          the tasks that were attempted, data included, by id
    """

    trajectories: tuple[Trajectory, ...]
    rollouts: Rollouts
    tasks: Mapping[str, Task] = field(default_factory=dict)

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory], tasks: Iterable[Task] | Mapping[str, Task] = ()) -> Batch:
        """A batch of these trajectories; those without turns are left out. Columns: what the trajectories say of themselves, and
        `token.NAME` for everything that the engine reported about their tokens, and `turn.NAME` for what a plan noted on turns."""
        played = tuple(trajectory for trajectory in trajectories if trajectory.turns)
        if not played:
            raise TurnwiseError("a batch needs at least one trajectory that has a turn")
        task_of = tasks if isinstance(tasks, Mapping) else {task.id: task for task in tasks}
        wanted = {trajectory.task for trajectory in played}
        rollouts = Rollouts.from_trajectories(played)
        batch = cls(played, rollouts, {id: task for id, task in task_of.items() if id in wanted})
        turns = [turn for trajectory in played for turn in trajectory.turns]
        columns: dict[str, Any] = {}
        if any(turn.version >= 0 for turn in turns):
            columns["turn.version"] = [turn.version for turn in turns]
        if not all(turn.learned for turn in turns):  # some were given and not sampled
            columns["turn.mask"] = [turn.learned for turn in turns]
        columns |= _branches(batch) | _reports(turns)
        for name in dict.fromkeys(name for turn in turns if turn.notes for name in turn.notes):  # NaN for turns without it
            columns[f"turn.{name}"] = np.array([turn.notes.get(name, np.nan) for turn in turns])
        return batch.with_columns(columns)

    def __len__(self) -> int:
        """The number of turns."""
        return len(self.rollouts)

    def __repr__(self) -> str:
        return f"Batch({self.rollouts!r}, columns {', '.join(self.rollouts.names())})"

    @cached_property
    def first_row(self) -> Ints:
        """The row of each trajectory's first turn; one entry more than trajectories."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum([len(trajectory.turns) for trajectory in self.trajectories])])

    @cached_property
    def numbers(self) -> Ints:
        """Each trajectory's number in columns of level `trajectory`."""
        return self.rollouts.trajectory[self.first_row[:-1]]

    def rows(self, k: int) -> range:
        """The rows of the turns of `trajectories[k]`."""
        return range(int(self.first_row[k]), int(self.first_row[k + 1]))

    def task(self, k: int) -> Task:
        """The task that `trajectories[k]` attempts."""
        try:
            return self.tasks[self.trajectories[k].task]
        except KeyError:
            raise TurnwiseError(f"the batch does not hold task {self.trajectories[k].task!r}: it was made without its tasks") from None

    def column(self, name: str) -> NDArray[Any]:
        """A column by level and name, such as `turn.advantage`."""
        return self.rollouts.column(name)

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return self.rollouts.has(name)

    def need(self, name: str, why: str) -> NDArray[Any]:
        """The column, or an error that names the component that needs it."""
        return self.rollouts.need(name, why)

    def with_columns(self, columns: Mapping[str, Any]) -> Batch:
        """The same batch with further columns, each named by level and name."""
        return replace(self, rollouts=self.rollouts.with_columns(columns)) if columns else self

    @property
    def advantage_level(self) -> Literal["turn", "token"] | None:
        """The level of the advantages; None before credit was given."""
        return self.rollouts.advantage_level

    def part(self, indices: Iterable[int]) -> Batch:
        """These trajectories alone, with the columns of their turns and tokens."""
        chosen = list(indices)
        small = Batch.of([self.trajectories[k] for k in chosen], self.tasks)
        rows = np.concatenate([np.arange(*self.first_row[k : k + 2]) for k in chosen])
        offsets = self.rollouts.token_offsets if self.rollouts.tokens is not None else None
        flat = None if offsets is None else np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row in rows])
        whole = {name: self.column(name) for name in self.rollouts.names() if not small.has(name) or name in ("turn.reward", "turn.mask")}
        moved = {name: column[rows] for name, column in whole.items() if name.startswith("turn.")}
        if flat is not None:
            moved |= {name: column[flat] for name, column in whole.items() if name.startswith("token.")}
        return small.with_columns(moved)


def _branches(batch: Batch) -> dict[str, Any]:
    """`trajectory.parent` (the parent's number; -1 for none, and for one outside the batch) and `trajectory.branch_t`."""
    if all(trajectory.parent is None for trajectory in batch.trajectories):
        return {}
    number_of = dict(zip((trajectory.id for trajectory in batch.trajectories), batch.numbers.tolist(), strict=True))
    parent, branch_t = np.full(len(batch.trajectories), -1, np.int64), np.zeros(len(batch.trajectories), np.int64)
    for trajectory, number in zip(batch.trajectories, batch.numbers.tolist(), strict=True):
        if trajectory.parent is not None:
            parent[number], branch_t[number] = number_of.get(trajectory.parent, -1), trajectory.branch_t
    return {"trajectory.parent": parent, "trajectory.branch_t": branch_t}


def _reports(played: Sequence[Turn]) -> dict[str, Any]:
    """One column per token for everything that was reported about every turn that has tokens."""
    turns = [turn for turn in played if len(turn.response_ids)]
    if not turns or not turns[0].reports:
        return {}
    columns = {}
    for name in turns[0].reports:
        if any(name not in turn.reports for turn in turns):
            continue
        for turn in turns:
            if len(turn.reports[name]) != len(turn.response_ids):
                raise TurnwiseError(
                    f"report {name!r}: {len(turn.reports[name])} values for {len(turn.response_ids)} response tokens; give one per token"
                )
        columns[f"token.{name.partition(':')[0]}"] = np.concatenate([np.asarray(turn.reports[name]) for turn in turns])
    return columns
