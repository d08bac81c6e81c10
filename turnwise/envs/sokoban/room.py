"""A Sokoban room: its walls and targets, the cells of the boxes and the player, and what a move does.

Cells are numbered row by row, so a direction is a number to add. Boxes are a sorted tuple: equal states compare equal, whatever the path
to them, and nothing depends on the order of a set. Rooms are read and written in the usual letters: `#` wall, `.` target, `$` box, `*`
box on a target, `@` player, `+` player on a target, space (or `_` or `-`) floor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from turnwise.util.errors import TurnwiseError

DIRECTIONS = ("up", "down", "left", "right")
FLOOR_LETTERS = " _-"
LETTERS = "#.$*@+" + FLOOR_LETTERS

Boxes = tuple[int, ...]


@dataclass(frozen=True)
class Room:
    """A room in one state. `walls`, `targets`, `boxes` and `player` are cell numbers; `boxes` and `targets` are sorted."""

    height: int
    width: int
    walls: frozenset[int]
    targets: Boxes
    boxes: Boxes
    player: int

    @cached_property
    def offsets(self) -> dict[str, int]:
        """What to add to a cell's number to go one step in a direction."""
        return {"up": -self.width, "down": self.width, "left": -1, "right": 1}

    @property
    def solved(self) -> bool:
        return self.boxes == self.targets

    @property
    def boxes_on_targets(self) -> int:
        return len(set(self.boxes) & set(self.targets))

    def after(self, direction: str) -> Room:
        """The room after one move. A move against a wall, or against a box that cannot move, changes nothing."""
        offset = self.offsets[direction]
        player, boxes = move(self.walls, self.player, self.boxes, offset)
        return self if player == self.player else replace(self, player=player, boxes=boxes)

    def at(self, player: int, boxes: Iterable[int]) -> Room:
        """The same room with player and boxes elsewhere."""
        stand = tuple(boxes)
        cells = set(range(self.height * self.width)) - self.walls
        if len(stand) != len(self.boxes) or len({player, *stand}) != len(stand) + 1 or not {player, *stand} <= cells:
            raise ValueError(f"player {player!r} and boxes {stand!r} do not fit into this room")
        return replace(self, player=player, boxes=tuple(sorted(stand)))

    def text(self, floor: str = " ", between: str = "") -> str:
        """The room as lines of letters."""
        cells = [floor] * (self.height * self.width)
        for wall in self.walls:
            cells[wall] = "#"
        for target in self.targets:
            cells[target] = "."
        for box in self.boxes:
            cells[box] = "*" if cells[box] == "." else "$"
        cells[self.player] = "+" if cells[self.player] == "." else "@"
        return "\n".join(between.join(cells[start : start + self.width]) for start in range(0, len(cells), self.width))


def move(walls: frozenset[int], player: int, boxes: Boxes, offset: int) -> tuple[int, Boxes]:
    """The cells of player and boxes after one step."""
    ahead = player + offset
    if ahead in walls:
        return player, boxes
    if ahead not in boxes:
        return ahead, boxes
    beyond = ahead + offset
    if beyond in walls or beyond in boxes:
        return player, boxes
    return ahead, moved_box(boxes, ahead, beyond)


def moved_box(boxes: Boxes, here: int, there: int) -> Boxes:
    return tuple(sorted(there if box == here else box for box in boxes))


def reachable(walls: frozenset[int], boxes: Boxes, player: int, offsets: Iterable[int]) -> dict[int, int]:
    """The cells that the player can walk to without pushing, each with the number of steps."""
    blocked = walls.union(boxes)
    steps = {player: 0}
    queue = deque([player])
    offsets = tuple(offsets)
    while queue:
        cell = queue.popleft()
        for offset in offsets:
            ahead = cell + offset
            if ahead not in blocked and ahead not in steps:
                steps[ahead] = steps[cell] + 1
                queue.append(ahead)
    return steps


def read_room(text: str, where: str = "room") -> Room:
    """A room from its letters. Short lines are filled up with walls; what the player can reach must be walled in."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    width = max(map(len, lines), default=0)
    letters = "".join(line.ljust(width, "#") for line in lines)
    if unknown := set(letters) - set(LETTERS):
        raise TurnwiseError(f"{where}: {sorted(unknown)[0]!r} is not a Sokoban letter. Known: {LETTERS!r}")
    found = {kind: [cell for cell, letter in enumerate(letters) if letter in kind] for kind in ("#", ".*+", "$*", "@+")}
    walls, targets, boxes, players = found["#"], found[".*+"], found["$*"], found["@+"]
    if len(players) != 1:
        raise TurnwiseError(f"{where}: a room has exactly one player (@ or +), this one has {len(players)}")
    if len(boxes) != len(targets) or not boxes:
        raise TurnwiseError(f"{where}: a room has as many boxes as targets and at least one, this one has {len(boxes)} and {len(targets)}")
    room = Room(len(lines), width, frozenset(walls), tuple(targets), tuple(boxes), players[0])
    _check_closed(room, where)
    return room


def _check_closed(room: Room, where: str) -> None:
    """The player must not walk out: numbers of cells beyond an edge would be other cells."""
    seen, queue = {room.player}, deque([room.player])
    while queue:
        cell = queue.popleft()
        row, column = divmod(cell, room.width)
        if row in (0, room.height - 1) or column in (0, room.width - 1):
            raise TurnwiseError(f"{where}: the wall has a gap at row {row + 1}, column {column + 1}")
        for offset in room.offsets.values():
            if (ahead := cell + offset) not in room.walls and ahead not in seen:
                seen.add(ahead)
                queue.append(ahead)
