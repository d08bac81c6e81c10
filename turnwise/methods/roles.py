"""The turns of an environment that is played with subtasks (turnwise/envs/subtasks.py), role by role.

    role       reward r                                                                  its episode
    subtask    the environment's rewards until the next subtask                          the attempt
    action     1 where it completes its subtask, −1 where it cannot be parsed, else 0    the subtask
    progress   that of the action before it                                              the subtask

What ends an attempt ends the episodes of all roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.step_hrl import ROLE
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.methods.registry import signal
from turnwise.util.errors import TurnwiseError

ROLES = ("subtask", "action", "progress")
REWARD, ENDS = "turn.role_reward", "turn.role_ends"
Rewarded = Annotated[Literal["subtask", "environment"], Help("what rewards actions: completing their subtask, or the environment")]


def step_of(turn: Turn) -> Mapping[str, Any]:
    """What the environment said about the role of a turn."""
    found = turn.info.get("env", {}).get("step")
    if found is None:
        raise TurnwiseError("step_hrl: the turns have no roles. Set env.options.subtasks, as method.name=step_hrl does")
    return dict(found)


@signal("step_roles", paper="STEP-HRL, arXiv 2604.05808", gives=(ROLE, REWARD, ENDS))
def step_roles(batch: Batch, models: Any, *, rewarded: Rewarded = "subtask") -> Mapping[str, Any]:
    """The role of every turn, the reward of that role, and whether the role's episode ends with the turn."""
    role, reward, ends = np.zeros(len(batch), np.int64), np.zeros(len(batch)), np.zeros(len(batch), np.bool_)
    for k, trajectory in enumerate(batch.trajectories):
        turns = list(batch.rows(k))
        role[turns], reward[turns], ends[turns] = in_roles(trajectory, rewarded)
    return {ROLE: role, REWARD: reward, ENDS: ends}


def in_roles(trajectory: Trajectory, rewarded: str) -> tuple[list[int], list[float], list[bool]]:
    """Role, reward and end of each turn. What ends an attempt ends all roles."""
    steps, turns = [step_of(turn) for turn in trajectory.turns], trajectory.turns
    roles = [ROLES.index(step["role"]) for step in steps]
    reward = [0.0] * len(turns)
    named, acted = 0, 0.0  # the last turn that named a subtask, the reward of the last action
    for t, (turn, step, role) in enumerate(zip(turns, steps, roles, strict=True)):
        if role == 0:
            named = t
        elif role == 1:
            acted = turn.reward if rewarded == "environment" else -1.0 if not turn.valid else float(step["completed"])
        reward[named] += turn.reward
        reward[t] += acted if role else 0.0
    last = {role: t for t, role in enumerate(roles)}
    return roles, reward, [t == last[role] or bool(role and step["ends"]) for t, (role, step) in enumerate(zip(roles, steps, strict=True))]


def subtasks_of(trajectories: Sequence[Trajectory]) -> float:
    """How many subtasks were named per attempt."""
    named = [turn for one in trajectories for turn in one.turns if step_of(turn)["role"] == "subtask"]
    return len(named) / max(len(trajectories), 1)
