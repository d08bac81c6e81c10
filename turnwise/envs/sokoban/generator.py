"""Unlimited rooms: a number gives a room, the same on every machine, and every room can be solved within `depth` moves.

A walk through solid rock leaves a floor; some of its cells become targets. Then the game is played backwards from the solved room, in
layers: layer d holds the states from which d moves solve it. The room is a state of one of these layers, so it can be solved.
 A layer with too many states is thinned at random; if none was (all small rooms), d is exactly the length of a shortest solution.

The split is decided by a hash of the room's *plan*, its floor and targets without boxes and player, turned and mirrored into one standard
form. So train, valid and test share no room and not even a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from turnwise.data.tasks import Task
from turnwise.envs.dice import SPLITS, Dice, part_of_all
from turnwise.envs.sokoban.room import Boxes, Room, moved_box
from turnwise.util.errors import TurnwiseError

STREAM = "sokoban 1"
ATTEMPTS = 2_000
THINNED_TO = 400
SMALLEST, LARGEST = 5, 30
WAYS = ((-1, 0), (1, 0), (0, -1), (0, 1))
GOAL = "Push every box onto a target."

State = tuple[int, Boxes]


@dataclass(frozen=True)
class Knobs:
    """What kind of rooms are made. A shortest solution has `least` to `depth` moves."""

    height: int = 6
    width: int = 6
    boxes: int = 1
    depth: int = 15
    least: int = 2

    @property
    def key(self) -> str:
        return f"{self.height}x{self.width} {self.boxes} {self.least} {self.depth}"


def turn_knobs(size: int | Sequence[int], boxes: int, depth: int, least: int) -> Knobs:
    """The knobs, checked. `size` is one number or a pair (height, width), walls included."""
    pair: tuple[Any, ...] = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    if len(pair) != 2 or not all(_whole(n) and SMALLEST <= n <= LARGEST for n in pair):
        raise TurnwiseError(
            f"sokoban: size must be an integer from {SMALLEST} to {LARGEST} or a pair (height, width) of them, got {size!r}"
        )
    cells = (pair[0] - 2) * (pair[1] - 2)
    if not _whole(boxes) or not 1 <= boxes <= max(1, cells // 4):
        raise TurnwiseError(f"sokoban: a room of {pair[0]} × {pair[1]} takes 1 to {max(1, cells // 4)} boxes, got {boxes!r}")
    if not _whole(least) or not _whole(depth) or not 1 <= least <= depth:
        raise TurnwiseError(f"sokoban: depth and least must be integers with 1 ≤ least ≤ depth, got depth={depth!r}, least={least!r}")
    return Knobs(pair[0], pair[1], boxes, depth, least)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def generate(knobs: Knobs, split: str, index: int) -> tuple[Room, int]:
    """Room number `index` of a split, and in how many moves it can be solved."""
    for attempt in range(ATTEMPTS):
        dice = Dice(f"{STREAM} {knobs.key} {split} {index} {attempt}")
        plan = _plan(knobs, dice)
        if part_of_all(standard_plan(plan)) in SPLITS[split] and (found := _play_backwards(plan, knobs, dice)):
            return found
    raise TurnwiseError(
        f"sokoban: no room of {knobs.height} × {knobs.width} with {knobs.boxes} boxes that {knobs.least} to {knobs.depth} moves solve was "
        f"found in {ATTEMPTS} attempts. Make the room larger, or ask for fewer boxes or a smaller `least`"
    )


def _plan(knobs: Knobs, dice: Dice) -> Room:
    """Floor and targets, with the boxes on the targets: a solved room."""
    height, width = knobs.height, knobs.width
    inside = (height - 2) * (width - 2)
    wanted = dice.between((max(inside * 2 // 5, 2 * knobs.boxes + 2), inside * 9 // 10))
    row, column = dice.between((1, height - 2)), dice.between((1, width - 2))
    floor = {row * width + column}
    way = dice.pick(WAYS)
    while len(floor) < wanted:
        if dice.below(100) < 35:
            way = dice.pick(WAYS)
        row, column = min(max(row + way[0], 1), height - 2), min(max(column + way[1], 1), width - 2)
        beside = dice.pick(WAYS)  # a little wider than the walk: there must be space to walk around boxes
        rows, columns = min(max(row + beside[0], 1), height - 2), min(max(column + beside[1], 1), width - 2)
        floor |= {row * width + column, rows * width + columns}
    cells = sorted(floor)
    places = list(cells)
    dice.shuffle(places)
    targets = tuple(sorted(places[: knobs.boxes]))
    walls = frozenset(range(height * width)) - frozenset(cells)
    return Room(height, width, walls, targets, targets, places[knobs.boxes])


def _play_backwards(plan: Room, knobs: Knobs, dice: Dice) -> tuple[Room, int] | None:
    """A state of one of the layers, drawn so that all solution lengths of the plan are equally likely."""
    layers = _layers(plan, knobs.depth, dice)
    wanted = dice.between((knobs.least, knobs.depth))
    lengths = [*range(min(wanted, len(layers) - 1), knobs.least - 1, -1), *range(wanted + 1, len(layers))]
    targets = set(plan.targets)
    for length in lengths:
        states = [state for state in layers[length] if not targets & set(state[1])]  # no box is on a target yet
        if states:
            player, boxes = dice.pick(states)
            return Room(plan.height, plan.width, plan.walls, plan.targets, boxes, player), length
    return None


def _layers(plan: Room, depth: int, dice: Dice) -> list[list[State]]:
    """layers[d]: the states that d moves solve, by playing backwards from all solved ones."""
    floor = [cell for cell in range(plan.height * plan.width) if cell not in plan.walls]
    layer: list[State] = [(cell, plan.targets) for cell in floor if cell not in plan.targets]
    seen = set(layer)
    layers = [layer]
    for _ in range(depth):
        layer = list(dict.fromkeys(state for after in layer for state in _before(plan, after) if state not in seen))
        seen.update(layer)
        if not layer:
            break
        if len(layer) > THINNED_TO:
            dice.shuffle(layer)
            layer = layer[:THINNED_TO]
        layers.append(layer)
    return layers


def _before(plan: Room, state: State) -> list[State]:
    """The states from which one move leads here: the player came from a neighbouring cell, and may have pushed the box ahead of it."""
    player, boxes = state
    found: list[State] = []
    for offset in plan.offsets.values():
        origin = player - offset
        if origin in plan.walls or origin in boxes:
            continue
        found.append((origin, boxes))
        if player + offset in boxes:
            found.append((origin, moved_box(boxes, player + offset, player)))
    return found


def standard_plan(room: Room) -> str:
    """Floor and targets without boxes and player, in the first of the eight rotated and mirrored forms, in sorting order."""
    letters = {cell: "." if cell in room.targets else " " for cell in range(room.height * room.width) if cell not in room.walls}
    places = [(*divmod(cell, room.width), letter) for cell, letter in letters.items()]
    forms = []
    for mirrored in (False, True):
        for _ in range(4):
            places = [(column, -row, letter) for row, column, letter in places]
            forms.append(_drawn([(column, row, letter) if mirrored else (row, column, letter) for row, column, letter in places]))
    return min(forms)


def _drawn(places: list[tuple[int, int, str]]) -> str:
    top, left = min(row for row, _, _ in places), min(column for _, column, _ in places)
    height, width = max(row for row, _, _ in places) - top + 1, max(column for _, column, _ in places) - left + 1
    grid = [["#"] * width for _ in range(height)]
    for row, column, letter in places:
        grid[row - top][column - left] = letter
    return "\n".join(map("".join, grid))


@lru_cache(maxsize=4096)
def task(knobs: Knobs, split: str, index: int) -> Task:
    """The same as a task. Its id is made from its content."""
    room, moves = generate(knobs, split, index)
    first = (moves - 1) // 5 * 5 + 1  # rooms are grouped by the length of their solutions
    return task_of(
        room, split, {"moves": moves, "task_type": f"{first} to {first + 4} moves"}, f"{knobs.height}x{knobs.width}-{knobs.boxes}"
    )


def task_of(room: Room, split: str, more: Mapping[str, Any], prefix: str) -> Task:
    text = room.text()
    return Task(f"{prefix}-{blake2b(text.encode(), digest_size=8).hexdigest()}", split, {"goal": GOAL, "room": text, **more})
