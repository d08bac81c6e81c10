"""A grid world as text: what is where, seen from the agent.

MiniGrid encodes a cell as three numbers: what it is, its colour, its state. In the partial view the agent is in the middle of the last
row and looks towards the first one; what is in its own cell there is what it carries. Nothing here needs the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

UNSEEN, EMPTY, WALL, FLOOR, DOOR, AGENT = 0, 1, 2, 3, 4, 10
KINDS = ("", "", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOORS = ("open", "closed", "locked")
PLAIN = ("goal", "lava")  # their colour is always the same
FORWARD = ((1, 0), (0, 1), (-1, 0), (0, -1))  # (x, y) per direction; y grows downwards
ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")

Place = tuple[int, int]  # steps forward, steps to the right; negative: back, to the left


class Thing(NamedTuple):
    """What is in a cell, and where that is from the agent."""

    kind: str
    colour: str
    state: str  # of a door
    place: Place

    @property
    def name(self) -> str:
        """As in "red ball", "locked blue door" and "goal"."""
        return " ".join(word for word in (self.state, "" if self.kind in PLAIN else self.colour, self.kind) if word)


class Scene(NamedTuple):
    """What the agent sees: things, nearest first; the nearest wall straight ahead and to each side; what it carries."""

    things: tuple[Thing, ...]
    walls: tuple[Place, ...]
    carried: Thing | None

    def at(self, place: Place) -> Thing | None:
        """The thing at a place."""
        return next((thing for thing in self.things if thing.place == place), None)


def thing(code: Sequence[int], place: Place) -> Thing:
    """A cell's three numbers as a thing."""
    kind, colour, state = (int(number) for number in code)
    known = KINDS[kind] if 0 <= kind < len(KINDS) else f"thing {kind}"
    return Thing(known, COLOURS[colour] if 0 <= colour < len(COLOURS) else "", DOORS[state % 3] if kind == DOOR else "", place)


def scene(cells: Iterable[tuple[Place, Sequence[int]]], carried: Thing | None = None) -> Scene:
    """What cells show. Empty floor is left out, and of walls only those straight ahead, behind and to the sides are kept."""
    things, walls = [], []
    for place, code in cells:
        if code[0] == WALL:
            walls.append(place)
        elif code[0] not in (UNSEEN, EMPTY, FLOOR, AGENT):
            things.append(thing(code, place))
    things.sort(key=lambda found: _order(found.place))
    return Scene(tuple(things), nearest_walls(walls), carried)


def nearest_walls(walls: Iterable[Place]) -> tuple[Place, ...]:
    """The nearest wall ahead, to the left, to the right and behind."""
    straight: dict[Place, Place] = {}
    for ahead, right in walls:
        if (ahead == 0) == (right == 0):
            continue
        way = (int(np.sign(ahead)), int(np.sign(right)))
        if way not in straight or abs(ahead + right) < abs(sum(straight[way])):
            straight[way] = (ahead, right)
    return tuple(straight[way] for way in ((1, 0), (0, -1), (0, 1), (-1, 0)) if way in straight)


def partial_view(image: Any) -> Scene:
    """The scene of MiniGrid's partial view: an array of columns × rows × 3."""
    codes = np.asarray(image)
    middle, last = codes.shape[0] // 2, codes.shape[1] - 1
    own = codes[middle, last].tolist()
    carried = None if own[0] in (UNSEEN, EMPTY, FLOOR, AGENT, WALL) else thing(own, (0, 0))
    columns, rows = np.nonzero(codes[:, :, 0] > EMPTY)
    places = zip(columns.tolist(), rows.tolist(), strict=True)
    return scene((((last - y, x - middle), codes[x, y].tolist()) for x, y in places if (x, y) != (middle, last)), carried)


def whole_view(image: Any, carried: Thing | None = None) -> Scene | None:
    """The scene of a view of the whole grid, in which the agent is a cell; None if it is not there."""
    codes = np.asarray(image)
    found = np.argwhere(codes[:, :, 0] == AGENT)
    if not len(found):
        return None
    x, y = (int(number) for number in found[0])
    pose = (x, y, int(codes[x, y, 2]) % 4)
    columns, rows = np.nonzero(codes[:, :, 0] > EMPTY)
    places = zip(columns.tolist(), rows.tolist(), strict=True)
    return scene(((seen_from(pose, place), codes[place].tolist()) for place in places), carried)


def seen_from(pose: tuple[int, int, int], cell: tuple[int, int]) -> Place:
    """A cell's place from an agent in a cell that looks in a direction."""
    dx, dy = FORWARD[pose[2]]
    x, y = cell[0] - pose[0], cell[1] - pose[1]
    return dx * x + dy * y, dx * y - dy * x


def cell_at(pose: tuple[int, int, int], place: tuple[Any, Any]) -> tuple[Any, Any]:
    """The cell of a place, or of arrays of them: the reverse of `seen_from`."""
    dx, dy = FORWARD[pose[2]]
    return pose[0] + dx * place[0] - dy * place[1], pose[1] + dy * place[0] + dx * place[1]


def described(seen: Scene) -> str:
    """The scene as text, a line for each thing."""
    carried = f"You carry {_a(seen.carried.name)}.\n" if seen.carried is not None else ""
    lines = [f"{_a(found.name)} {where(found.place)}" for found in seen.things]
    lines += [f"a wall {where(place)}" for place in seen.walls]
    return carried + ("\n".join(["You see:", *lines]) if lines else "You see nothing.")


def where(place: Place, ways: tuple[str, str, str, str] = ("forward", "back", "right", "left")) -> str:
    """As in "2 steps forward and 1 step left"."""
    ahead, right = place
    parts = [_steps(ahead, ways[0], ways[1])] if ahead else []
    parts += [_steps(right, ways[2], ways[3])] if right else []
    return " and ".join(parts) or "where you are"


def _steps(number: int, positive: str, negative: str) -> str:
    return f"{abs(number)} step{'s' if abs(number) > 1 else ''} {positive if number > 0 else negative}"


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _order(place: Place) -> tuple[int, int, int]:
    return abs(place[0]) + abs(place[1]), -place[0], place[1]
