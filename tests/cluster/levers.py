"""The environment of the runs that are killed: the smallest one, which reports when it is asked for something."""

from __future__ import annotations

import sys
from typing import Any

from bandit_env import Bandit

from turnwise import Observation, Transition


def _happens(moment: str) -> None:
    watch = sys.modules.get("sitecustomize")
    if watch is not None and hasattr(watch, "happens"):
        watch.happens(moment, role="environment")


class Levers(Bandit):
    """A bandit that comes to moments."""

    def reset(self, task: Any, seed: int = 0) -> Observation:
        _happens("reset")
        return super().reset(task, seed)

    def step(self, action: str) -> Transition:
        _happens("step")
        seen = super().step(action)
        _happens("last step" if seen.done else "first step")
        return seen
