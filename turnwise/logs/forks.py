"""The tree of a task's attempts: where they share states and actions, where they part, and the credit of every turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from turnwise.credit.diagnose import explain
from turnwise.credit.segments import last_turns
from turnwise.data.rollouts import Bools, Floats, Rollouts, Trajectory
from turnwise.logs.columns import Turns, turns_of
from turnwise.logs.findings import MOST_PLACES, Label, Place, shortened
from turnwise.util.errors import TurnwiseError


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


def credit_of(turns: Turns) -> tuple[Floats, Floats]:
    """GiGPO's credit of each turn, and its step part alone. Where rewards are all alike, winning is the reward of the last turn."""
    reward = np.array([turn.reward for trajectory in turns.trajectories for turn in trajectory.turns], np.float64)
    columns: dict[str, Any] = {"group": turns.task[turns.attempt], "trajectory": turns.attempt, "t": turns.t, "anchor": turns.state}
    rollouts = Rollouts.from_columns(**columns, reward=reward)
    if np.ptp(np.bincount(turns.attempt, reward)) <= 1e-12:
        last: Bools = last_turns(rollouts)
        rollouts = Rollouts.from_columns(**columns, reward=np.where(last, turns.won[turns.attempt], 0.0))
    levels = explain(rollouts)
    return levels["episode"] + levels["step"], levels["step"]


def tree(trajectories: Sequence[Trajectory]) -> Tree:
    """The tree of the attempts at one task."""
    turns = turns_of(trajectories)
    if turns.tasks != 1:
        raise TurnwiseError(f"a tree is of one task; these attempts are at {turns.tasks} tasks that have turns")
    credit, step = credit_of(turns)
    members: list[list[int]] = []
    numbers: dict[tuple[int, int, int], int] = {}
    at = np.full(len(turns.task), -1)  # the node where each attempt is
    for row in np.lexsort((turns.attempt, turns.t)).tolist():
        attempt = turns.attempt[row]
        key = (int(at[attempt]), int(turns.state[row]), int(turns.action[row]))
        at[attempt] = numbers.setdefault(key, len(numbers))
        if at[attempt] == len(members):
            members.append([])
        members[at[attempt]].append(row)
    rates: dict[tuple[int, int], set[float]] = {}
    for (parent, state, _), rows in zip(numbers, members, strict=True):
        rates.setdefault((parent, state), set()).add(float(turns.won[turns.attempt[rows]].mean()))
    text = turns.names.texts.__getitem__
    nodes = [
        Node(
            parent,
            int(turns.t[rows[0]]),
            shortened(text(int(turns.observation[rows[0]]))),
            shortened(text(action)),
            len(rows),
            int(turns.won[turns.attempt[rows]].sum()),
            float(credit[rows].mean()),
            float(step[rows].mean()),
            len(rates[parent, state]) > 1,
            tuple(Place(turns.trajectories[turns.attempt[row]].id, int(turns.t[row])) for row in rows[:MOST_PLACES]),
        )
        for (parent, state, action), rows in zip(numbers, members, strict=True)
    ]
    return Tree(turns.trajectories[0].group, len(turns.task), int(turns.won.sum()), tuple(nodes))
