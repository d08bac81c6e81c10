"""An environment that takes a known time, on a clock of its own: no test has to wait, and none depends on how busy the machine is."""

from __future__ import annotations

import time
from typing import Any

from turnwise.data.tasks import Task
from turnwise.envs import worker
from turnwise.envs.base import Observation, Transition

RESET = 1.0  # seconds


class Clock:
    """Stands for the module `time`. Only what is played here makes it go on."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


CLOCK = Clock()


class Timed:
    """A reset takes a second, and a step as many as the action says."""

    def reset(self, task: Task, seed: int = 0) -> Observation:
        CLOCK.now += RESET
        return Observation("begun")

    def step(self, action: str) -> Transition:
        CLOCK.now += float(action)
        return Transition(Observation("played"))


class Factory:
    """Makes these environments. A worker process that gets it goes by their clock."""

    def __init__(self) -> None:
        self.by = "clock"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        worker.time = CLOCK  # type: ignore[assignment]

    def __call__(self) -> Timed:
        return Timed()
