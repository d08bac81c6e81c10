"""Small environments that show pictures: a bandit whose better arm only the picture tells, and a walk of several pictures."""

from __future__ import annotations

import numpy as np

from turnwise.data.tasks import Task
from turnwise.envs.base import Observation, Transition

RED, BLUE = (200, 30, 30), (30, 30, 200)


def square(colour: tuple[int, int, int], height: int = 16, width: int = 16) -> np.ndarray:
    return np.broadcast_to(np.array(colour, np.uint8), (height, width, 3)).copy()


class PictureBandit:
    """One turn. On red left is right, on blue right is; the words are the same. What starts before "n" counts as left, so that even a model
    that babbles picks one of the two."""

    max_turns = 1

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.red = int(task.data["number"]) % 2 == 0
        return self._look()

    def step(self, action: str) -> Transition:
        good = (action[:1].lower() < "n") == self.red
        return Transition(self._look(), float(good), True, good)

    def _look(self) -> Observation:
        return Observation("pick", (square(RED if self.red else BLUE),))


class PictureWalk:
    """Three turns, each with a picture of another size and shade; the first letter of an action decides the reward. No anchors given."""

    max_turns = 3

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.turn, self.number = 0, int(task.data["number"])
        return self._look()

    def step(self, action: str) -> Transition:
        self.turn += 1
        good = action[:1].lower() < "n"
        return Transition(self._look(), float(good), self.turn == 3, self.turn == 3 and good)

    def _look(self) -> Observation:
        shade = 40 * self.turn + 10 * (self.number % 3)
        return Observation("the picture shows the room", (square((shade, 255 - shade, 99), 16 + 8 * self.turn, 16),), ("left", "right"))
