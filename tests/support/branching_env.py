"""Environments for tests of branches: a random walk that can be kept, with faults on request, and one whose chance comes from nowhere."""

from __future__ import annotations

import json
import os
import random
from typing import Any

from troubled_env import Troubled, accident

from turnwise.data.tasks import Task
from turnwise.envs import EpisodeOver, Observation, Transition
from turnwise.util.errors import TurnwiseError


class Walker(Troubled):
    """The walk of `Troubled` with snapshots. `trouble` is the accident that happens when the task's id says so: in `snapshot` where it
    is "snapshot", in `restore` where it is "restore". `forgets`: a restored walk has chance of its own."""

    def __init__(self, trouble: str = "", forgets: bool = False):
        super().__init__()
        self.trouble, self.forgets, self.task = trouble, forgets, ""

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.task = task.id
        return super().reset(task, seed)

    def snapshot(self) -> Any:
        if self.over:
            raise EpisodeOver("reset first")
        if self.task == "snapshot":
            accident(self.trouble)
            if self.trouble == "text":
                return "not bytes"
            if self.trouble == "none":
                return None
        return json.dumps([self.task, self.place, self.rng.getstate()]).encode()

    def restore(self, state: bytes) -> Observation:
        try:
            self.task, self.place, (version, numbers, rest) = json.loads(state)
        except (ValueError, TypeError) as error:
            raise TurnwiseError(f"not a snapshot of a walk: {error}") from None
        if self.task == "restore":
            accident(self.trouble)
        self.rng = random.Random()
        if not self.forgets:
            self.rng.setstate((version, tuple(numbers), rest))
        self.over = False
        return Observation(f"place {self.place}", actions=("walk", "end"))


class Unseeded:
    """Its chance comes from the system: no action leads twice to the same place."""

    max_turns = 5

    def __init__(self) -> None:
        self.over = True

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.over, self.turn = False, 0
        return Observation("start", actions=("walk",))

    def step(self, action: str) -> Transition:
        if self.over:
            raise EpisodeOver("reset first")
        self.turn += 1
        self.over = action == "end"
        text = "start" if self.turn < 2 else f"place {os.urandom(8).hex()}"
        return Transition(Observation(text, actions=("walk",)), 0.0, self.over)


class HalfRestorable(Unseeded):
    def snapshot(self) -> bytes:
        return b"here"
