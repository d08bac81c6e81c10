"""The tree of a task's attempts: where they share states and actions, where they part, and the credit of every turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from turnwise.data.rollouts import Trajectory
from turnwise.logs.findings import Label, Place


@dataclass(frozen=True)
class Node:
    """Attempts that have shared every state and action so far, and now take the same action. `parent` is an index into the tree's nodes
    (-1: the attempts' first turn). `credit` is the mean of GiGPO's credit of these turns, `step` that of its step part. `fork`: attempts
    that come from the same parent and see the same state take different actions here, and their share of won attempts differs."""

    parent: int
    t: int
    state: str
    action: str
    attempts: int
    won: int
    credit: float
    step: float
    fork: bool
    turns: tuple[Place, ...]


@dataclass(frozen=True)
class Tree:
    """Nodes in order of depth: a parent comes before its children."""

    task: Label
    attempts: int
    won: int
    nodes: tuple[Node, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def tree(trajectories: Sequence[Trajectory]) -> Tree:
    """The tree of the attempts at one task."""
    raise NotImplementedError
