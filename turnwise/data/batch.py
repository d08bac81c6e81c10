"""Stub until the real one lands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from turnwise.data.rollouts import Ints, Rollouts, Trajectory
from turnwise.util.errors import TurnwiseError

FIELDS = {
    "turn.value": "value",
    "token.value": "token_value",
    "token.logprob": "token_logprob",
    "turn.reward": "reward",
    "turn.valid": "valid",
    "turn.t": "t",
}


@dataclass(frozen=True, eq=False)
class Batch:
    trajectories: tuple[Trajectory, ...]
    rollouts: Rollouts
    tasks: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory], tasks: Mapping[str, Any] | None = None) -> Batch:
        found = tuple(trajectories)
        batch = cls(found, Rollouts.from_trajectories(found), tasks or {})
        code = {label: n for n, label in enumerate(batch.rollouts.trajectory_labels.tolist())}
        if any(getattr(x, "parent", None) is not None for x in found):
            parent, first = np.full(len(code), -1), np.zeros(len(code), np.int64)
            for x in found:
                if getattr(x, "parent", None) is not None:
                    parent[code[x.id]], first[code[x.id]] = code.get(x.parent, -1), x.branch_t
            return batch.with_columns({"trajectory.parent": parent, "trajectory.branch_t": first})
        return batch

    def __len__(self) -> int:
        return len(self.rollouts)

    def rows(self, k: int) -> Ints:
        start = sum(len(trajectory.turns) for trajectory in self.trajectories[:k])
        return np.arange(start, start + len(self.trajectories[k].turns))

    def has(self, name: str) -> bool:
        return name in self.columns or (name in FIELDS and getattr(self.rollouts, FIELDS[name]) is not None)

    def column(self, name: str) -> Any:
        if name in self.columns:
            return self.columns[name]
        if self.has(name):
            return getattr(self.rollouts, FIELDS[name])
        raise TurnwiseError(f"this batch has no column {name!r}")

    def with_columns(self, columns: Mapping[str, Any]) -> Batch:
        sizes = {"turn": len(self), "trajectory": len(self.rollouts.trajectory_labels), "group": len(self.rollouts.group_labels)}
        sizes["token"] = int(self.rollouts.tokens.sum()) if self.rollouts.tokens is not None else 0
        for name, column in columns.items():
            if len(column) != sizes[name.partition(".")[0]]:
                raise TurnwiseError(f"column {name}: {len(column)} entries")
        own = {FIELDS[name]: np.asarray(column) for name, column in columns.items() if name in FIELDS}
        further = {name: np.asarray(column) for name, column in columns.items() if name not in FIELDS}
        return replace(self, rollouts=replace(self.rollouts, **own), columns={**self.columns, **further})
