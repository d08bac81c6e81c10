"""Walks over a grid of signs. The agent decides itself when it has arrived: it says stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Observation, Transition
from turnwise.envs.cards.base import drawn_tasks
from turnwise.envs.dice import Dice
from turnwise.envs.episodes import EpisodeEnv, checked_count

WAYS = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
ACTIONS = (*WAYS, "stop")
SYLLABLES = [consonant + vowel for consonant in "bdfghklmnprs" for vowel in "aeiou"]
SIGNS = {action: SYLLABLES[place :: len(ACTIONS)] for place, action in enumerate(ACTIONS)}  # 12 words for each meaning
MUTE = "nothing"


class Walk(EpisodeEnv):
    """A square of `side` × `side` cells with a sign in each: a word that means the way to the goal or, on the goal,
    stop. What the words mean has to be learned. A share of `mute` percent of the cells has no sign. The attempt
    ends with the action stop; the reward is 1 if that was on the goal. A step over the edge changes nothing. With
    `trail`, a state is the whole way to a cell, as in a dialogue, and attempts that part never share a state again."""

    name = "walk"
    depends_on = ("side", "mute", "trail")
    instructions = f"Follow the signs to the goal and stop there. The actions are {', '.join(ACTIONS)}."

    def __init__(self, side: int = 6, mute: int = 20, trail: bool = False):
        super().__init__()
        self.side = checked_count(side, 3, 20, "walk: side must be an integer from 3 to 20")
        self.mute = checked_count(mute, 0, 90, "walk: mute is a share in percent, 0 to 90")
        self.max_turns, self.trail = 50, trail
        self.signs: list[list[str]] = []
        self.at, self.goal = (0, 0), (0, 0)
        self.way: list[int] = []

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """Start and goal at least three steps apart, and a number that the signs are drawn with."""

        def draw(dice: Dice) -> tuple[str, dict[str, Any]] | None:
            start, goal = ([dice.below(self.side), dice.below(self.side)] for _ in range(2))
            if abs(start[0] - goal[0]) + abs(start[1] - goal[1]) < 3:
                return None
            data = {"goal": "Follow the signs.", "start": start, "end": goal, "signs": dice.below(1_000_000)}
            return f"{start} {goal} {data['signs']}", data

        return drawn_tasks("walk", split, n, draw, str(self.side))

    def _begin(self, task: Task, seed: int) -> None:
        dice = Dice(f"signs {task.data['signs']}")
        self.at, self.goal = tuple(task.data["start"]), tuple(task.data["end"])
        cells = [[(row, column) for column in range(self.side)] for row in range(self.side)]
        self.signs = [[self._sign(dice, cell) for cell in row] for row in cells]
        self.way = [self.at[0] * self.side + self.at[1]]

    def _sign(self, dice: Dice, cell: tuple[int, ...]) -> str:
        word, mute = dice.pick(SIGNS[self._way(cell)]), dice.below(100) < self.mute
        return MUTE if mute and cell != self.goal else word

    def _way(self, cell: tuple[int, ...]) -> str:
        """The action that leads on from a cell, along the longer side of the way first."""
        down, right = self.goal[0] - cell[0], self.goal[1] - cell[1]
        if down == right == 0:
            return "stop"
        return ("south" if down > 0 else "north") if abs(down) >= abs(right) else "east" if right > 0 else "west"

    def _play(self, action: str) -> Transition:
        word = action.strip()
        down, right = WAYS.get(word, (0, 0))
        row, column = self.at[0] + down, self.at[1] + right
        if 0 <= row < self.side and 0 <= column < self.side:
            self.at = row, column
        self.way.append(self.at[0] * self.side + self.at[1])
        won = word == "stop" and self.at == self.goal
        return Transition(self._see(), float(won), word == "stop", won, {"understood": word in ACTIONS})

    def _see(self) -> Observation:
        row, column = self.at
        anchor = ",".join(map(str, self.way)) if self.trail else row * self.side + column
        return Observation(f"Sign: {self.signs[row][column]}", actions=ACTIONS, anchor=anchor)

    def expert_action(self) -> str:
        return self._way(self.at)

    def _kept(self) -> dict[str, Any]:
        return {"at": list(self.at), "way": list(self.way)}

    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None:
        self._begin(task, 0)
        self.at, self.way = tuple(kept["at"]), list(kept["way"])
