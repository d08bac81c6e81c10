"""A game for two seats without any package: whoever says the number that reaches the goal wins."""

from __future__ import annotations

from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver, Observation, Share, Transition


class Race:
    """Two seats add 1 or 2 in turn. "x" is not an action: the same seat is asked again, or it counts as 1 if the game is `lenient`. "crash"
    raises. A pass costs the other 0.25."""

    max_turns = 20

    def __init__(self, goal: int = 5, first: int = 0, lenient: bool = False):
        self.goal, self.first, self.lenient, self.over = goal, first, lenient, True

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.total, self.seat, self.over = 0, self.first, False
        return self._see()

    def step(self, action: str) -> Transition:
        if self.over:
            raise EpisodeOver("call reset first")
        if action == "crash":
            raise RuntimeError("the board fell off the table")
        seat = self.seat
        if action == "pass":
            self.seat = 1 - seat
            return Transition(self._see(), 0.5, others={1 - seat: Share(-0.25)}, info={"passed": seat})
        if action not in ("1", "2"):
            if not self.lenient:
                return Transition(self._see(), -0.1)
            action = "1"
        self.total += int(action)
        self.over = self.total >= self.goal
        if self.over:
            return Transition(self._see(), 1.0, True, True, {"measures": {"total": self.total}}, {1 - seat: Share(0.0, False)})
        self.seat = 1 - seat
        return Transition(self._see())

    def expert_action(self) -> str:
        return str((self.goal - self.total) % 3 or 1)

    def _see(self) -> Observation:
        return Observation(f"Seat {self.seat}: {self.total} of {self.goal}", actions=("1", "2"), anchor=f"{self.total}", seat=self.seat)


class Guesses(Race):
    """Every word is an action: those that start before "n" add 1, all others add 2. So even a model that babbles wins or loses."""

    def step(self, action: str) -> Transition:
        return super().step("1" if action[:1].lower() < "n" else "2")
