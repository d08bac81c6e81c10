"""NumberLine: walk along the integers to a target, one step at a time."""

from __future__ import annotations

from functools import lru_cache

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.cards.base import Anchor, Observed, Played, Rewards, TableEnv, listed_tasks
from turnwise.envs.cards.pixels import BLACK, EDGE, RED, WHITE, Image, canvas, write
from turnwise.envs.episodes import checked_count
from turnwise.util.errors import TurnwiseError

MOVES = {"+": 1, "-": -1}
FURTHEST = 200
GOAL = "Reach the target."


class NumberLineEnv(TableEnv):
    """From a number between 0 and `highest` to another. The actions are + and -; at the ends of the line a step outwards changes nothing.
    The reward is 1 at the target, −1 for a step that leads no nearer (any text that is not an action is such a step), otherwise 0."""

    instructions = "You stand on a number line. The action + adds one to your number, the action - subtracts one."
    name = "numberline"
    depends_on = (*TableEnv.depends_on, "highest")
    reward_range = (-1.0, 1.0)

    def __init__(
        self,
        highest: int = 5,
        observe: Observed = "text",
        anchor: Anchor = "observation",
        rewards: Rewards = "paper",
        scale: int = 2,
    ):
        super().__init__(observe, anchor, rewards, scale)
        self.highest = checked_count(highest, 2, FURTHEST, f"numberline: highest must be an integer from 2 to {FURTHEST}")
        self.max_turns = 2 * highest
        self.position = self.target = 0

    def tasks(self, split: str = "train") -> TaskSet:
        """Every pair of different numbers, in one split each."""
        return _tasks(split, self.highest)

    def _start(self, task: Task, seed: int) -> None:
        start, target = task.data.get("start"), task.data.get("target")
        for number in (start, target):
            if not isinstance(number, int) or not 0 <= number <= self.highest:
                raise TurnwiseError(f"task {task.id!r}: start and target must be integers from 0 to highest={self.highest}, got {number!r}")
        if start == target:
            raise TurnwiseError(f"task {task.id!r}: start and target are both {start}")
        self.position, self.target = int(start or 0), int(target or 0)

    def _act(self, word: str) -> Played:
        before = abs(self.target - self.position)
        self.position = min(max(self.position + MOVES.get(word, 0), 0), self.highest)
        left = abs(self.target - self.position)
        there = left == 0
        return Played(1.0 if there else 0.0 if left < before else -1.0, there, there, {"understood": word in MOVES, "distance": left})

    def _played(self) -> int:
        return self.position

    def _replay(self, played: int) -> None:
        if played not in range(self.highest + 1):
            raise ValueError(f"{played!r} is not on the line")
        self.position = played

    def _words(self) -> str:
        return f"Target: {self.target}\nCurrent: {self.position}"

    def _picture(self) -> Image:
        """The two numbers, and the line with both of them marked."""
        image = canvas(64, 112, WHITE)
        write(image, f"TARGET {self.target}", 6, 4, RED)
        write(image, f"CURRENT {self.position}", 20, 4, BLACK)
        image[46, 5:107] = EDGE
        for number, colour, top in ((self.target, RED, 50), (self.position, BLACK, 38)):
            at = 5 + number * 100 // self.highest
            image[top : top + 6, at : at + 2] = colour
        return image

    def _state(self) -> str:
        return f"{self.position} to {self.target}"

    def _actions(self) -> tuple[str, ...]:
        return tuple(MOVES)

    def expert(self, task: Task) -> list[str]:
        """The shortest path."""
        way = int(task.data["target"]) - int(task.data["start"])
        return ["+" if way > 0 else "-"] * abs(way)

    def expert_action(self) -> str | None:
        way = self.target - self.position
        return None if way == 0 else "+" if way > 0 else "-"

    def scripted_action(self) -> str:
        """Always up."""
        return "+"


@lru_cache(maxsize=16)
def _tasks(split: str, highest: int) -> TaskSet:
    pairs = [(start, target) for start in range(highest + 1) for target in range(highest + 1) if start != target]
    found = {f"{highest} {start} {target}": {"goal": GOAL, "start": start, "target": target} for start, target in pairs}
    return listed_tasks("numberline", split, found)
