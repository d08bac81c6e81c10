"""A corridor whose steps take a time of their own, so that answers from worker processes come in another order."""

from __future__ import annotations

import random
import time

from toy_env import Corridor

from turnwise.data.tasks import Task
from turnwise.envs.base import Observation, Transition


class Slow(Corridor):
    """`late`: which tasks are slow, the even (0) or the odd ones (1); none: every step by chance, and otherwise in every process."""

    max_turns = 4

    def __init__(self, late: int | None = None, seconds: float = 0.03):
        super().__init__()
        self.late, self.seconds = late, seconds

    def reset(self, task: Task, seed: int = 0) -> Observation:
        observation = super().reset(task, seed)
        self._wait()
        return observation

    def step(self, action: str) -> Transition:
        self._wait()
        return super().step(action)

    def _wait(self) -> None:
        if self.late is None:
            time.sleep(random.SystemRandom().random() * self.seconds)
        elif self.number % 2 == self.late:
            time.sleep(self.seconds)
