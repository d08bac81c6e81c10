"""A curriculum: tasks of the difficulty at which the policy succeeds about half of the time are attempted most often.

    weight(difficulty) = p · (1 − p) + floor        p: running mean of success at this difficulty

A group in which all attempts succeed, or all fail, teaches nothing, and p · (1 − p) is largest in between. What the plan has seen is its
state: it is saved with every checkpoint, so a run that was killed goes on with the same tasks as one that was not.

Use it in a recipe with

    [plan]
    name = "examples/methods/curriculum.py:Curriculum"
"""

from __future__ import annotations

import random
from typing import Annotated, Any

import turnwise as tw
from turnwise.config.options import Help
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots
from turnwise.util.seeds import derive


def difficulty(task: tw.Task) -> str:
    """The kind of a task: here the distance on the number line. Another environment needs another line here, such as
    `task.data["task_type"]`."""
    return str(abs(task.data["target"] - task.data["start"]))


@tw.methods.plan("curriculum", needs=("task.start", "task.target"))  # data of tasks can be needed, too
class Curriculum(Plan):
    """Tasks of a difficulty at which the policy sometimes succeeds and sometimes fails."""

    def __init__(
        self,
        *,
        memory: Annotated[float, Help("how much of the old mean stays after each group", low=0, high=1)] = 0.7,
        floor: Annotated[float, Help("weight of a difficulty that is always or never solved", low=0)] = 0.02,
    ):
        self.memory, self.floor = memory, floor
        self.success: dict[str, float] = {}  # difficulty → running mean of success; unknown ones count as 0.5, the most interesting

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        chosen = self.choose(slots, groups)
        found = yield [start for task in chosen for start in slots.group(task)]
        by_task = {task.id: difficulty(task) for task in chosen}
        for group in dict.fromkeys(trajectory.group for trajectory in found):
            members = [trajectory for trajectory in found if trajectory.group == group]
            self.see(by_task[members[0].task], sum(t.success for t in members) / len(members))
        # Counts appear in the log as collect/…
        tried = [int(difficulty(task)) for task in chosen]
        return Gathered(found, {"difficulty": sum(tried) / len(tried)})

    def choose(self, slots: TaskSlots, groups: int) -> list[tw.Task]:
        """The tasks of the next groups. `slots.used` grows by one per group and is restored on resume. A generator that is seeded with it
        draws the same in a run that was killed; a generator kept in `self` would have to be part of the state."""
        chance = random.Random(derive(slots.seed, "curriculum", slots.used))
        tasks: dict[str, list[tw.Task]] = {}
        for task in slots.tasks:
            tasks.setdefault(difficulty(task), []).append(task)
        kinds = sorted(tasks)
        weights = [self.weight(kind) for kind in kinds]
        return [chance.choice(tasks[kind]) for kind in chance.choices(kinds, weights, k=groups)]

    def weight(self, kind: str) -> float:
        p = self.success.get(kind, 0.5)
        return p * (1 - p) + self.floor

    def see(self, kind: str, success: float) -> None:
        """A group was attempted."""
        before = self.success.get(kind)
        self.success[kind] = success if before is None else self.memory * before + (1 - self.memory) * success

    # The state is saved as JSON in each checkpoint, after the update that it belongs to. Keys of a JSON object are texts: an integer key
    # would come back as text, so kinds are texts from the start.
    def state(self) -> dict[str, Any]:
        return {"success": dict(self.success)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.success = dict(state["success"])
