"""Corridors to branch in: one with snapshots, and one that no replay brings back to where it was."""

from __future__ import annotations

from typing import ClassVar

from toy_env import Corridor

from turnwise.data.tasks import Task
from turnwise.envs.base import Observation, Transition
from turnwise.envs.snapshots import pack, unpack


class Kept(Corridor):
    """A corridor with snapshots. Counts what all of its instances were asked."""

    asked: ClassVar[list[str]] = []

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.asked.append("reset")
        return super().reset(task, seed)

    def step(self, action: str) -> Transition:
        self.asked.append("step")
        return super().step(action)

    def snapshot(self) -> bytes:
        self.asked.append("snapshot")
        return pack("kept", {name: getattr(self, name) for name in ("place", "length", "steps", "number")})

    def restore(self, state: bytes) -> Observation:
        self.asked.append("restore")
        vars(self).update(unpack(state, "kept"))
        return self._look()


class Drifting(Corridor):
    """An odd task begins somewhere else at each reset: no seed brings a branch back to where its parent was."""

    resets = 0

    def reset(self, task: Task, seed: int = 0) -> Observation:
        super().reset(task, seed)
        Drifting.resets += 1
        self.length += 10 * Drifting.resets if self.number % 2 else 10
        return self._look()
