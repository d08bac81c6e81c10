"""The `household` environment: generated houses in the same simulator as ALFWorld's games. No download, unlimited tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.household.env import Anchor, Sight, WorldEnv
from turnwise.envs.household.generator import house, task_set
from turnwise.envs.household.knobs import turn_knobs
from turnwise.envs.household.world import World

Number = int | Sequence[int]  # one number, or a pair (from, to)


class HouseholdEnv(WorldEnv):
    """Generated households with ALFWorld's six tasks.

    `size` is "tiny" (a room of five receptacles), "small" or "full" (as large as ALFWorld's); single knobs change it: `receptacles`,
    `copies` of the wanted kind and `distractors` of others, `closed` receptacles, `task_types`, `rooms`, and the kinds of `furniture`
    that a house may have, at most one of each. They decide which tasks `tasks` makes. A task contains its whole
    house, so any of these environments plays any household task.
    """

    name = "household"

    def __init__(
        self,
        size: str = "small",
        *,
        receptacles: Number | None = None,
        distractors: Number | None = None,
        copies: Number | None = None,
        closed: Number | None = None,
        task_types: Sequence[str] | str | None = None,
        rooms: Sequence[str] | str | None = None,
        furniture: Sequence[str] | None = None,
        anchor: Anchor = "observation",
        expert_knows: Sight = "all",
    ):
        super().__init__(anchor, expert_knows)
        self.size = size
        self.knobs = turn_knobs(size, receptacles, distractors, copies, closed, task_types, rooms, furniture)
        self.max_turns = self.knobs.max_turns

    def world(self, task: Task) -> World:
        return _world(task)

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The first `n` houses of "train", "valid" or "test", each made on demand."""
        return task_set(self.knobs, split, n, f"household {self.size}")


@lru_cache(maxsize=256)
def _world(task: Task) -> World:
    """Compiled once for all environments that play a group's trajectories of the same task."""
    return house(task.data).world()
