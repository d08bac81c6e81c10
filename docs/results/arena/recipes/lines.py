"""A row of rooms to walk through from one end to the other. The sign on a room decides which action leads on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Observation, Transition
from turnwise.envs.cards.base import drawn_tasks
from turnwise.envs.dice import Dice
from turnwise.envs.episodes import EpisodeEnv, checked_count

SIGNS = [consonant + vowel for consonant in "bdfghjklmnprstvwz" for vowel in "aeiou"]
BACKWARDS = {sign for sign in SIGNS if Dice(f"line {sign}").below(2)}  # where + leads back and - leads on


class Line(EpisodeEnv):
    """A row of `length` rooms with different signs. In half of the rooms + leads to the next room and - to the one
    before, in the others it is the other way round. A step goes the wrong way with a probability of `slip`
    percent. The reward is 1 in the last room."""

    name = "line"
    depends_on = ("length", "slip")
    instructions = "Reach the last room. The actions are + and -."

    def __init__(self, length: int = 8, slip: int = 0):
        super().__init__()
        self.length = checked_count(length, 2, len(SIGNS), f"line: length must be an integer from 2 to {len(SIGNS)}")
        self.slip = checked_count(slip, 0, 50, "line: slip is a probability in percent, 0 to 50")
        self.max_turns = 3 * length
        self.rooms: list[str] = []
        self.at = self.moves = self.seed = 0

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """Different signs in a random order, which decides the split."""

        def draw(dice: Dice) -> tuple[str, dict[str, Any]]:
            signs = list(SIGNS)
            dice.shuffle(signs)
            return " ".join(signs[: self.length]), {"goal": "Go on.", "rooms": signs[: self.length]}

        return drawn_tasks("line", split, n, draw, str(self.length))

    def _begin(self, task: Task, seed: int) -> None:
        self.rooms, self.at, self.moves, self.seed = list(task.data["rooms"]), 0, 0, seed

    def _play(self, action: str) -> Transition:
        self.moves += 1
        word = action.strip()
        way = {self._on: 1, self._back: -1}.get(word, 0)
        slips = Dice(f"slip {self.seed} {self.moves}").below(100) < self.slip
        self.at = max(0, self.at - way if slips else self.at + way)
        there = self.at == len(self.rooms) - 1
        return Transition(self._see(), float(there), there, there, {"understood": way != 0, "slipped": slips})

    @property
    def _on(self) -> str:
        return "-" if self.rooms[self.at] in BACKWARDS else "+"

    @property
    def _back(self) -> str:
        return "+" if self._on == "-" else "-"

    def _see(self) -> Observation:
        return Observation(f"Room {self.rooms[self.at]}", actions=("+", "-"))

    def expert_action(self) -> str:
        return self._on

    def _kept(self) -> dict[str, Any]:
        return {"at": self.at, "moves": self.moves, "seed": self.seed}

    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None:
        self._begin(task, int(kept["seed"]))
        self.at, self.moves = int(kept["at"]), int(kept["moves"])
