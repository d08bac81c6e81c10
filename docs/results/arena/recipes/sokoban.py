"""Sokoban told in words, which a model of one layer can read."""

from __future__ import annotations

from dataclasses import replace

from turnwise.envs.base import Observation
from turnwise.envs.sokoban.env import GeneratedSokoban
from turnwise.envs.sokoban.room import DIRECTIONS, Room


class Told(GeneratedSokoban):
    """Rooms with one box. The text says where the box is from the player, where the target is from the box, and what a
    step in each direction does; the anchor is the whole state."""

    def __init__(self, size: int = 5, depth: int = 8, least: int = 2):
        super().__init__(size, 1, depth, least, anchor="state")

    def _see(self) -> Observation:
        room = self.room
        box, target = (divmod(cell, room.width) for cell in (room.boxes[0], room.targets[0]))
        player = divmod(room.player, room.width)
        words = [
            _way(box[0] - player[0], "up", "down"),
            _way(box[1] - player[1], "left", "right"),
            _way(target[0] - box[0], "north", "south"),
            _way(target[1] - box[1], "west", "east"),
            *(_step(room, way) for way in DIRECTIONS),
        ]
        return replace(super()._see(), text=" ".join(filter(None, words)))


def _way(steps: int, less: str, more: str) -> str:
    """A direction without a distance."""
    return "" if steps == 0 else less if steps < 0 else more


def _step(room: Room, way: str) -> str:
    """Whether a step is free, pushes the box, or solves the room; nothing if it is impossible."""
    after = room.after(way)
    return "" if after is room else ("solve" if after.solved else "free" if after.boxes == room.boxes else "push") + way
