"""An environment for tests that answers as environments of one's own do on the first day: wrongly, at some tasks or at all."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from turnwise.data.tasks import Task
from turnwise.envs import EpisodeOver, Observation, Transition

ACTIONS = ("left", "right")
SEEN = Observation("pick left or right", actions=ACTIONS)
ITSELF: dict[str, Any] = {}
ITSELF["itself"] = [ITSELF]

REWARDS: dict[str, Any] = {"nan": float("nan"), "inf": float("inf"), "none": None, "words": "much", "large": 10**400, "huge": 1e200}
OBSERVATIONS: dict[str, Any] = {
    "text none": Observation(None),  # type: ignore[arg-type]
    "text bytes": Observation(b"left"),  # type: ignore[arg-type]
    "text": "pick left or right",
    "actions text": Observation("", actions="left"),  # type: ignore[arg-type]
    "actions set": Observation("", actions={"left"}),  # type: ignore[arg-type]
    "actions numbers": Observation("", actions=(1, 2)),  # type: ignore[arg-type]
    "anchor": Observation("", anchor=(1, 2)),
    "images": Observation("", images=(np.zeros((4, 4, 3)),)),
    "image": Observation("", images=np.zeros((4, 4, 3), np.uint8)),  # type: ignore[arg-type]
}
ANSWERS: dict[str, Any] = {
    "nothing": None,
    "gym": ("pick", 0.0, False, False, {}),
    "old gym": ("pick", 0.0, False, {}),
    "observation": SEEN,
    "done": Transition(SEEN, done="no"),  # type: ignore[arg-type]
    "success": Transition(SEEN, success=None),  # type: ignore[arg-type]
    "info": Transition(SEEN, info=["x"]),  # type: ignore[arg-type]
}
KINDS = (*REWARDS, *OBSERVATIONS, *ANSWERS)


class Faulty:
    """Two picks, left is better. At the tasks whose numbers are in `at` (all: at every one) something is wrong from turn `turn` on."""

    max_turns = 2

    def __init__(self, fault: str = "", at: Any = "all", turn: int = 1, turns: int = 2):
        self.fault, self.at, self.turn, self.turns, self.over = fault, at, turn, turns, True

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.taken, self.over = 0, False
        self.bad = bool(self.fault) and (self.at == "all" or int(task.data["number"]) in self.at)
        self.kind = self.fault if self.fault != "each" else KINDS[int(task.data["number"]) % len(KINDS)]
        if self.bad and self.kind == "reset":
            return SEEN, {}  # type: ignore[return-value]
        return SEEN

    def step(self, action: str) -> Transition:
        if self.over:
            raise EpisodeOver("reset first")
        self.taken += 1
        self.over = self.taken >= self.turns
        if self.bad and self.taken >= self.turn:
            return self.wrong()
        left = action[:1].lower() < "n"
        return Transition(SEEN, float(left), self.over, self.over and left, {"itself": ITSELF, "large": 10**5000})

    def wrong(self) -> Any:
        if self.kind == "raise":
            return self.counted["left"]
        if self.kind == "exit":
            os._exit(9)
        if self.kind == "hang":
            time.sleep(600)
        if self.kind in REWARDS:
            return Transition(SEEN, REWARDS[self.kind])
        return Transition(OBSERVATIONS[self.kind]) if self.kind in OBSERVATIONS else ANSWERS[self.kind]

    @property
    def counted(self) -> dict[str, int]:
        return {"right": 1}


class Advised(Faulty):
    """The same with an expert."""

    def expert_action(self) -> str:
        return "left"
