"""Attempts that start in the middle of another one.

A branch takes over the first turns of a finished attempt: their tokens, log-probs, rewards and versions are copied, not sampled again.
Its environment reaches that turn from a snapshot, if one was kept, or by playing the recorded actions again; its context by retracing the
turns one by one. Both are compared with the parent: the anchors of the states, and the token ids of the prompts. A branch that differs
anywhere is lost. It is dropped and counted, because its turns would be compared with those of another state.

What is kept for branches is separate from the trajectories and lives as long as the collector: the observations as the environment gave
them, and snapshots. If it is missing (a trajectory of an earlier batch, an environment without snapshots), the actions are played again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from turnwise.data.attempts import Branch, Start
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.envs.base import Observation, Transition
from turnwise.envs.pool import Ask, EnvResult
from turnwise.envs.scripts import Arrived, arrive


@dataclass(slots=True)
class Trail:
    """What is kept of one attempt: the observations before each turn and after the last one, and snapshots by turn."""

    trajectory: Trajectory
    observations: list[Observation] = field(default_factory=list)
    snapshots: dict[int, bytes] = field(default_factory=dict)


class Trails:
    """The trails of a collector's attempts, by trajectory."""

    def __init__(self) -> None:
        self._trails: dict[int, Trail] = {}

    def of(self, trajectory: Trajectory) -> Trail:
        return self._trails.setdefault(id(trajectory), Trail(trajectory))

    def adopt(self, copy: Trajectory, own: Trajectory) -> None:
        """What was kept of an attempt serves a copy of its trajectory too."""
        if (trail := self._trails.get(id(own))) is not None:
            self._trails[id(copy)] = Trail(copy, trail.observations, trail.snapshots)

    def drop(self, trajectory: Trajectory) -> None:
        """Nothing will branch from this attempt any more."""
        self._trails.pop(id(trajectory), None)

    def snapshot(self, branch: Branch) -> tuple[list[Observation], bytes] | None:
        """The observations up to a branch and the snapshot there; None if one of them is missing."""
        trail = self._trails.get(id(branch.trajectory))
        if trail is None or branch.t not in trail.snapshots or len(trail.observations) <= branch.t:
            return None
        return trail.observations[: branch.t + 1], trail.snapshots[branch.t]


class Arriving:
    """A branch that has not reached its turn yet. `request` is what its environment is asked next, `seen` the observations so far."""

    def __init__(self, start: Start, branch: Branch, trails: Trails):
        parent, t = branch.trajectory, branch.t
        snapshot = trails.snapshot(branch)
        self.branch = branch
        self.seen: list[Observation] = snapshot[0] if snapshot is not None else []
        self._restores = snapshot is not None
        actions = [turn.action for turn in parent.turns[:t]]
        anchors = [turn.anchor for turn in parent.turns[: t + 1]]
        anchors += [parent.final_anchor] if t == len(parent.turns) else []
        self._play = arrive(start.task, parent.seed, actions, anchors, snapshot[1] if snapshot is not None else None)
        self.request: Ask = next(self._play)

    def take(self, result: EnvResult) -> Arrived | None:
        """Takes the environment's answer to the request. Returns the outcome of the branch once it is known."""
        if not self._restores and result.transition is not None:
            self.seen.append(result.observation)
        try:
            self.request = self._play.send(result)
        except StopIteration as end:
            arrived: Arrived = end.value
            return arrived
        return None

    def shared(self) -> Iterator[tuple[Turn, Transition]]:
        """Copies of the parent's turns before the branch, each with its outcome."""
        for turn, observation in zip(self.branch.trajectory.turns[: self.branch.t], self.seen[1:], strict=True):
            yield replace(turn), Transition(observation, turn.reward, info=turn.info.get("env", {}))


def begun(start: Start) -> Trajectory:
    """The trajectory of an attempt that has not begun yet."""
    branch = start.branch
    trajectory = Trajectory(start.group, start.number, task=start.task.id, seed=start.env_seed)
    if branch is not None:
        trajectory.seed, trajectory.goal = branch.trajectory.seed, branch.trajectory.goal
        trajectory.parent, trajectory.branch_t = branch.trajectory.id, branch.t
    return trajectory
