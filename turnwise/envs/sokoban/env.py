"""Sokoban as an environment: rewards as in gym-sokoban, text or pictures, and a solver as the expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.dice import endless_tasks
from turnwise.envs.episodes import EpisodeEnv, check_choice, checked_count
from turnwise.envs.sokoban.generator import task, turn_knobs
from turnwise.envs.sokoban.pictures import LARGEST_TILE, SMALLEST_TILE, TILE, Image, draw
from turnwise.envs.sokoban.room import DIRECTIONS, Room, read_room
from turnwise.envs.sokoban.solver import Solver
from turnwise.util.errors import TurnwiseError

STEP, BOX, SOLVED = -0.1, 1.0, 10.0
REWARD_RANGE = (STEP - BOX, STEP + BOX + SOLVED)  # of one step

Observed = Literal["text", "image", "both"]
Anchor = Literal["observation", "state"]


class SokobanEnv(EpisodeEnv):
    """Plays rooms. `observe`: "text" (a grid of letters), "image" (an RGB array) or "both"; `tile` is the side of a cell in pixels.

    `anchor`: "observation" (the grid, or a hash if there is only the picture) or "state" (16 bytes of all positions, the same for text
    and pictures). Both distinguish the same states: a room is fully visible. Every step costs 0.1, also an impossible one and any text
    that is not a move; a box brought to a target gives 1, one pushed off it costs 1, the solved room gives 10. The game is deterministic,
    so `seed` has no effect.
    """

    name = "sokoban"
    depends_on = ("observe", "anchor", "tile")
    instructions = (
        "You play Sokoban. You push boxes and cannot pull them, one at a time, and nothing moves through a wall. In the grid # is a wall, "
        "_ is floor, $ is a box, . is a target, * is a box on a target, @ is you and + is you on a target. "
        "The actions are up, down, left and right."
    )

    def __init__(self, observe: Observed = "text", anchor: Anchor = "observation", tile: int = TILE):
        check_choice("way to observe", observe, ("text", "image", "both"))
        check_choice("anchor", anchor, ("observation", "state"))
        super().__init__()
        meaning = f"sokoban: tile is the side of a cell in pixels, {SMALLEST_TILE} to {LARGEST_TILE}"
        self.observe, self.anchor, self.tile = observe, anchor, checked_count(tile, SMALLEST_TILE, LARGEST_TILE, meaning)
        self._room: Room | None = None
        self._plan: list[str] | None = None

    def _begin(self, task: Task, seed: int) -> None:
        self._room, self._plan = room_of(task), None
        if self._room.solved:
            raise TurnwiseError(f"task {task.id!r} is solved from the start: take another")

    def _play(self, action: str) -> Transition:
        word = action.strip().lower()
        before = self.room
        room = before.after(word) if word in DIRECTIONS else before
        if room is not before:  # the expert's plan is kept as long as the agent follows it
            self._plan = self._plan[1:] if self._plan and self._plan[0] == word else None
        self._room = room
        reward = STEP + BOX * (room.boxes_on_targets - before.boxes_on_targets) + SOLVED * room.solved
        info = {"understood": word in DIRECTIONS, "moved": room is not before, "boxes_on_targets": room.boxes_on_targets}
        return Transition(self._see(), reward, room.solved, room.solved, info)

    def _see(self) -> Observation:
        room = self.room
        text = "The picture shows the room." if self.observe == "image" else room.text("_", " ")
        images: tuple[Image, ...] = () if self.observe == "text" else (draw(room, self.tile),)
        anchor: bytes | None = None
        if self.anchor == "state" or self.observe == "image":  # equal letters, equal pictures: the letters are fewer to hash
            anchor = blake2b(room.text().encode(), digest_size=16).digest()
        return Observation(text, images, DIRECTIONS, anchor)

    def _kept(self) -> dict[str, Any]:
        return {"player": self.room.player, "boxes": self.room.boxes}

    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None:
        self._room, self._plan = room_of(task).at(kept["player"], kept["boxes"]), None

    @property
    def room(self) -> Room:
        """The room as it is now."""
        if self._room is None:
            raise EpisodeOver(self._over)
        return self._room

    def expert(self, task: Task) -> list[str]:
        """Moves that solve the task, as few as possible if the room is not too large. The current episode is not changed."""
        room = room_of(task)
        plan = _solver(room).plan(room.player, room.boxes)
        if plan is None:
            raise TurnwiseError(f"task {task.id!r}: the solver found no solution")
        return plan

    def expert_plan(self) -> list[str] | None:
        """The moves that are left from the current state; None if it can no longer be solved (or the solver gave up)."""
        if self._plan is None:
            self._plan = _solver(self.room).plan(self.room.player, self.room.boxes)
        return self._plan

    def expert_action(self) -> str | None:
        """The next move of the plan; None if nothing is left to do, or the room can no longer be solved."""
        plan = self.expert_plan()
        return plan[0] if plan else None

    def expert_distance(self) -> int | None:
        """How many moves are left; None if the room can no longer be solved."""
        plan = self.expert_plan()
        return None if plan is None else len(plan)

    def scripted_action(self) -> str:
        """A simple rule without a plan: walk to the nearest cell from which a push brings a box nearer to a target, and push."""
        return _solver(self.room).simple_action(self.room.player, self.room.boxes)


class GeneratedSokoban(SokobanEnv):
    """Unlimited Sokoban rooms. `size`: one number or (height, width), walls included; `boxes`; `depth`: every room has a solution of at
    most this many moves, which is also the turn limit; `least`: and of at least this many. The other options are those of
    `SokobanEnv`."""

    def __init__(
        self,
        size: int | Sequence[int] = 6,
        boxes: int = 1,
        depth: int = 15,
        least: int = 2,
        observe: Observed = "text",
        anchor: Anchor = "observation",
        tile: int = TILE,
    ):
        super().__init__(observe, anchor, tile)
        self.knobs = turn_knobs(size, boxes, depth, least)
        self.max_turns = self.knobs.depth

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The first `n` rooms of "train", "valid" or "test", each made on demand."""
        return endless_tasks(f"sokoban {self.knobs.key}", split, n, lambda index: task(self.knobs, split, index))


@lru_cache(maxsize=1024)
def _read(text: str, where: str) -> Room:
    return read_room(text, where)


def room_of(task: Task) -> Room:
    """The room that a task starts in."""
    if not isinstance(text := task.data.get("room"), str):
        raise TurnwiseError(f"task {task.id!r} is not a Sokoban task: its data has no text 'room'")
    return _read(text, f"task {task.id!r}")


def _solver(room: Room) -> Solver:
    return _solver_of(room.height, room.width, room.walls, room.targets)


@lru_cache(maxsize=64)
def _solver_of(height: int, width: int, walls: frozenset[int], targets: tuple[int, ...]) -> Solver:
    """One solver for all states of a room: what it computed about the walls is shared."""
    return Solver(Room(height, width, walls, targets, targets, -1))
