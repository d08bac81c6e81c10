"""The true state of a level: every object, the agent, and how far the instruction has been carried out.

The package keeps objects by identity (a "ball on your left" stays that ball wherever it is carried), so a level's objects are numbered
when it starts, and a state says where each number is. A level is a function of its name and seed, so the rest need not be saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

DESCRIPTIONS = ("desc", "desc_move", "desc_fixed")
OUTCOMES = (False, "continue", "success", "failure")  # of one part of an instruction


class World:
    """A level that has been reset, with its objects numbered: those in the grid, those in boxes, and the carried one."""

    def __init__(self, level: Any):
        self.level = level
        self.objects = list(_objects(level))
        self._number = {id(found): number for number, found in enumerate(self.objects)}

    @property
    def pose(self) -> tuple[int, int, int]:
        """Column, row and direction of the agent."""
        x, y = self.level.agent_pos
        return int(x), int(y), int(self.level.agent_dir)

    def state(self) -> dict[str, Any]:
        """Everything that the future depends on except for the number of steps, in JSON values."""
        cells = [-1] * len(self.objects)
        number = self._number
        for cell, found in enumerate(self.level.grid.grid):
            if found is not None and (known := number.get(id(found))) is not None:
                cells[known] = cell
        return {
            "agent": list(self.pose),
            "carried": self._numbered(self.level.carrying),
            "cells": cells,
            "doors": [[bool(door.is_open), bool(door.is_locked)] for door in self.objects if door.type == "door"],
            "progress": self._progress(self.level.instrs),
        }

    def key(self) -> bytes:
        """16 bytes that are equal for equal states of one task."""
        return blake2b(repr(self.state()).encode(), digest_size=16).digest()

    def details(self) -> dict[str, Any]:
        """What a snapshot needs in addition to the state."""
        places = [None if found.cur_pos is None else [int(number) for number in found.cur_pos] for found in self.objects]
        return {"steps": int(self.level.step_count), "places": places}

    def put(self, state: Mapping[str, Any], details: Mapping[str, Any]) -> None:
        """Bring the level to a state of the same task."""
        level, (x, y, direction) = self.level, (int(number) for number in state["agent"])
        if len(state["cells"]) != len(self.objects) or len(details["places"]) != len(self.objects):
            raise ValueError("the level has other objects: was it made by another version of minigrid?")
        if not (0 <= x < level.grid.width and 0 <= y < level.grid.height):
            raise ValueError("the agent is outside of the grid")
        for cell, found in enumerate(level.grid.grid):
            if id(found) in self._number:
                level.grid.grid[cell] = None
        for found, cell, place in zip(self.objects, state["cells"], details["places"], strict=True):
            found.cur_pos = None if place is None else (int(place[0]), int(place[1]))
            if cell >= 0:
                level.grid.grid[int(cell)] = found
        doors = [found for found in self.objects if found.type == "door"]
        for door, (opened, locked) in zip(doors, state["doors"], strict=True):
            door.is_open, door.is_locked = bool(opened), bool(locked)
        level.agent_pos, level.agent_dir = (x, y), direction % 4
        level.carrying, level.step_count = self._object(state["carried"]), int(details["steps"])
        self._put_progress(level.instrs, state["progress"])

    def _numbered(self, found: Any) -> int:
        return -1 if found is None else self._number[id(found)]

    def _object(self, number: int) -> Any:
        return None if number < 0 else self.objects[number]

    def _progress(self, instruction: Any) -> dict[str, Any]:
        """How far an instruction has been carried out. The package looks for described objects again only when one is dropped."""
        if hasattr(instruction, "instr_a"):
            parts = [self._progress(instruction.instr_a), self._progress(instruction.instr_b)]
            return {"parts": parts, "done": [OUTCOMES.index(instruction.a_done), OUTCOMES.index(instruction.b_done)]}
        found = [[[int(x), int(y)] for x, y in getattr(instruction, name).obj_poss] for name in DESCRIPTIONS if hasattr(instruction, name)]
        return {"found": found, "carried": self._numbered(getattr(instruction, "preCarrying", None))}

    def _put_progress(self, instruction: Any, kept: Mapping[str, Any]) -> None:
        if hasattr(instruction, "instr_a"):
            for part, own in zip((instruction.instr_a, instruction.instr_b), kept["parts"], strict=True):
                self._put_progress(part, own)
            instruction.a_done, instruction.b_done = (OUTCOMES[number] for number in kept["done"])
            return
        names = [name for name in DESCRIPTIONS if hasattr(instruction, name)]
        for name, places in zip(names, kept["found"], strict=True):
            getattr(instruction, name).obj_poss = [(int(x), int(y)) for x, y in places]
        if hasattr(instruction, "preCarrying"):
            instruction.preCarrying = self._object(kept["carried"])


def _objects(level: Any) -> Iterator[Any]:
    for found in (*level.grid.grid, level.carrying):
        while found is not None and found.type != "wall":
            yield found
            found = found.contains
