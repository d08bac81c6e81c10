"""A lift that the agent calls with a belief about where it is, and the tracker that knows better."""

from __future__ import annotations

from typing import Any

import turnwise as tw

SAID = '{}<belief>{{"task":{{"phase":"{}"}}}}</belief>'
ACTIONS = tuple(SAID.format(way, phase) for way in ("up", "down") for phase in ("low", "high"))


def phase(floor: int) -> str:
    return "low" if floor < 2 else "high"


class Lift:
    """Go to the top floor."""

    instructions = "Go to the top."
    max_turns = 4

    def tasks(self, split: str = "train") -> tw.TaskSet:
        return tw.TaskSet([tw.Task(f"{split}{n}", split, {"floor": n % 3}) for n in range(12)])

    def reset(self, task: tw.Task, seed: int = 0) -> tw.Observation:
        self.floor = int(task.data["floor"])
        return self._look()

    def step(self, action: str) -> tw.Transition:
        self.floor += 1 if action.startswith("up") else -1 if self.floor else 0
        return tw.Transition(self._look(), float(self.floor == 3), self.floor == 3, self.floor == 3)

    def _look(self) -> tw.Observation:
        return tw.Observation(f"floor {self.floor}", actions=ACTIONS)

    def expert(self, task: tw.Task) -> list[str]:
        return [SAID.format("up", phase(floor)) for floor in range(int(task.data["floor"]), 3)]


def tracker(trajectory: tw.Trajectory) -> list[dict[str, Any]]:
    return [{"phase": phase(int(turn.observation.split()[1]))} for turn in trajectory.turns]
