"""The environment of the runs that are killed: the smallest one, which reports when it is asked for something."""

from __future__ import annotations

import sys
from typing import Any

from turnwise import Observation, Transition


def _happens(moment: str) -> None:
    watch = sys.modules.get("sitecustomize")
    if watch is not None and hasattr(watch, "happens"):
        watch.happens(moment, role="environment")


class Levers:
    """Words that start before "n" are left, all others are right; left is better. So even a model that babbles picks one of the two."""

    max_turns = 2

    def reset(self, task: Any, seed: int = 0) -> Observation:
        _happens("reset")
        self.turn = 0
        return Observation("pick left or right", actions=("left", "right"))

    def step(self, action: str) -> Transition:
        _happens("step")
        self.turn += 1
        left, done = action[:1].lower() < "n", self.turn == 2
        seen = Transition(Observation("pick left or right again", actions=("left", "right")), float(left), done, done and left)
        _happens("last step" if done else "first step")
        return seen
