"""Two players for tasks that want the stairs. Both see what the agent sees.

The wanderer walks straight towards the stairs if they are in view, and otherwise at random. The explorer, which serves as the expert,
remembers where it was, finds the shortest way to the stairs over known cells, and otherwise to the nearest place from which more of the
map may be seen. It fights what stands next to it and keeps off lava and traps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from turnwise.util.seeds import derive
from turnwise_envs.minihack.words import NEIGHBOURS, hero, name_at, text_of, things

STAIRS = "staircase down"
BLOCKED = ("", "wall", "stone", "solid rock", "iron bars", "tree", "molten lava", "water", "sink", "fountain", "altar")
TRAPS = ("trap", "pit", "hole", "web", "board", "mine", "teleporter", "portal", "field", "pad")
DOORS = ("open door", "closed door")
TRIES = 3  # of a move: a door takes one to open, a pet may be in the way
PATIENCE = 12  # times that it searches or waits before it gives up

Cell = tuple[int, int]


def wander(seen: Mapping[str, Any], names: Mapping[str, int], turn: int) -> str:
    """Straight towards the stairs, or in a random direction that does not lead into a wall."""
    ways = [way for way in NEIGHBOURS if way in names]
    row, column = hero(seen)
    stairs = next((thing for thing in things(seen) if thing.name == STAIRS), None)
    if stairs is not None:
        wanted = (_sign(stairs.south), _sign(stairs.east))
        straight = next((way for way in ways if NEIGHBOURS[way] == wanted), None)
        if straight is not None and turn % 4 != 3:
            return straight
    free = [way for way in ways if _open(name_at(seen, row + NEIGHBOURS[way][0], column + NEIGHBOURS[way][1]))] or ways
    return free[derive(turn, "minihack wanders", row, column) % len(free)] if free else next(iter(names))


class Explorer:
    """Finds the stairs."""

    def __init__(self) -> None:
        self._visited: set[tuple[int, Cell]] = set()
        self._failed: Counter[tuple[Cell, str]] = Counter()  # moves that led nowhere
        self._kicked = ""  # the way to a locked door
        self._last: tuple[Cell, str] | None = None
        self._waited = 0

    def act(self, seen: Mapping[str, Any], names: Mapping[str, int]) -> str | None:
        """The next action; None if it has no idea."""
        here, depth = hero(seen), int(seen["blstats"][24]) if len(seen["blstats"]) > 24 else 0
        self._visited.add((depth, here))
        said, last, self._last = text_of(seen["message"]), self._last, None
        if last is not None and last[0] == here:
            self._failed[last] += 1
            if "locked" in said and "kick" in names:
                self._kicked = last[1]
                return "kick"
        if self._kicked and "direction" in said:
            return self._kicked
        for way, (south, east) in NEIGHBOURS.items():
            if way in names and _enemy(seen, here[0] + south, here[1] + east):
                return way
        cells = {(thing.south + here[0], thing.east + here[1]): thing.name for thing in things(seen)}
        stairs = {cell for cell, name in cells.items() if name == STAIRS}
        for careful in (True, False):
            for wanted in (
                lambda cell: cell in stairs,
                lambda cell: (depth, cell) not in self._visited and _edge(seen, cell),
                lambda cell: (depth, cell) not in self._visited,
            ):
                if found := self._way(seen, here, wanted, names, careful):
                    self._waited, self._last = 0, (here, found)
                    return found
        self._waited += 1
        if self._waited > PATIENCE:
            return None
        return next((word for word in ("search", "wait") if word in names), None)

    def _way(
        self, seen: Mapping[str, Any], start: Cell, wanted: Callable[[Cell], bool], names: Mapping[str, int], careful: bool
    ) -> str | None:
        """The first step of a shortest way to a wanted cell."""
        first: dict[Cell, str] = {start: ""}
        waiting = deque([start])
        while waiting:
            cell = waiting.popleft()
            if cell != start and wanted(cell):
                return first[cell]
            for way, near in _steps(seen, cell, names, careful):
                if near not in first and self._failed[cell, way] < TRIES:
                    first[near] = first[cell] or way
                    waiting.append(near)
        return None


def _steps(seen: Mapping[str, Any], cell: Cell, names: Mapping[str, int], careful: bool) -> Iterator[tuple[str, Cell]]:
    door = name_at(seen, *cell) in DOORS
    for way, (south, east) in NEIGHBOURS.items():
        near = (cell[0] + south, cell[1] + east)
        if way not in names or not _open(name := name_at(seen, *near)) or (careful and name.endswith(TRAPS)):
            continue
        if south and east and (door or name in DOORS):
            continue  # nobody walks through a door diagonally
        yield way, near


def _edge(seen: Mapping[str, Any], cell: Cell) -> bool:
    """Whether something unknown is next to a cell."""
    return any(not name_at(seen, cell[0] + south, cell[1] + east) for south, east in NEIGHBOURS.values())


def _open(name: str) -> bool:
    return name not in BLOCKED and not name.endswith("boulder")


def _enemy(seen: Mapping[str, Any], row: int, column: int) -> bool:
    name = name_at(seen, row, column)
    return bool(name) and chr(int(seen["chars"][row, column])).isalpha() and not name.startswith(("tame ", "peaceful "))


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
