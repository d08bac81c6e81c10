"""Small environments for tests: a corridor, and ones that raise, hang or die."""

from __future__ import annotations

import os
import time

from turnwise.data.tasks import Task
from turnwise.envs.base import Observation, Transition


class Corridor:
    """Walk `length` steps to the right; "left" steps back; anything else does nothing. The task's number sets the length."""

    def __init__(self, trouble: str = "", at: int = 2):
        self.trouble, self.at = trouble, at

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.length = 2 + int(task.data["number"]) % 3
        self.place, self.steps, self.number = 0, 0, int(task.data["number"])
        return self._look()

    def step(self, action: str) -> Transition:
        self.steps += 1
        if self.trouble and self.steps == self.at and self.number % 2:
            if self.trouble == "raise":
                raise RuntimeError("the floor gave way")
            if self.trouble == "hang":
                time.sleep(600)
            if self.trouble == "die":
                os._exit(3)
        self.place = max(0, self.place + {"right": 1, "left": -1}.get(action, 0))
        done = self.place >= self.length
        return Transition(self._look(), float(done), done, done, {"steps": self.steps})

    def _look(self) -> Observation:
        return Observation(f"You are at {self.place} of {self.length}.", actions=("left", "right"))
