"""The size and difficulty of a generated household: named sizes, and single knobs that change them.

The furniture and the things of houses, and where they belong, are read from `rooms.toml`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

from turnwise.envs.household.house import TASK_TYPES
from turnwise.util.errors import TurnwiseError, unknown_name

LAMP = "desklamp"


@dataclass(frozen=True)
class Room:
    """`receptacles`: kind -> (chance in percent, largest number); `objects`: kind -> (chance in percent, where it is, by weight). `size`
    is how many receptacles such a room has in ALFWorld, `clutter` how many objects."""

    receptacles: dict[str, tuple[int, int]]
    objects: dict[str, tuple[int, dict[str, int]]]
    size: tuple[int, int]
    clutter: tuple[int, int]


@dataclass(frozen=True)
class Furnishings:
    """`fits`: what may be put where, by kind; `traits`: what can be done with a kind of object."""

    openable: frozenset[str]
    fits: dict[str, frozenset[str]]
    traits: dict[str, tuple[str, ...]]
    rooms: dict[str, Room]


@lru_cache(maxsize=1)
def furnishings() -> Furnishings:
    raw = tomllib.loads(files("turnwise.envs.household").joinpath("rooms.toml").read_text("utf-8"))
    fits = {kind: frozenset(taken) for kind, taken in raw["fits"].items()}
    traits = {
        kind: ("pickupable", *(trait for trait, kinds in raw["traits"].items() if kind in kinds))
        for kind in sorted(frozenset[str]().union(*fits.values()))
    }
    traits[LAMP] = ("toggleable",)
    return Furnishings(frozenset(raw["openable"]), fits, traits, {name: _room(room) for name, room in raw["rooms"].items()})


def _room(raw: dict[str, Any]) -> Room:
    receptacles = {kind: (entry["chance"], entry["most"]) for kind, entry in raw["receptacles"].items()}
    objects = {kind: (entry["chance"], entry["in"]) for kind, entry in raw["objects"].items()}
    return Room(receptacles, objects, tuple(raw["size"]), tuple(raw["clutter"]))


Range = tuple[int, int]
SMALLEST_HOUSE = 3  # where the object is, where it is treated, where it belongs

# Where a task can be set, and how often ALFWorld sets it there.
TASK_ROOMS: dict[str, dict[str, int]] = {
    "pick_and_place_simple": {"kitchen": 1, "bedroom": 3, "livingroom": 3, "bathroom": 3},
    "look_at_obj_in_light": {"bedroom": 5, "livingroom": 1},
    "pick_clean_then_place_in_recep": {"kitchen": 3, "bathroom": 1},
    "pick_heat_then_place_in_recep": {"kitchen": 1},
    "pick_cool_then_place_in_recep": {"kitchen": 1},
    "pick_two_obj_and_place": {"kitchen": 1, "bedroom": 2, "livingroom": 2, "bathroom": 2},
}


@dataclass(frozen=True)
class Knobs:
    """Each number is a range, from and to. `receptacles` None: as many as such a room has in ALFWorld; `closed` None: all that can be
    closed; `distractors` None: as many objects in total as in ALFWorld. `furniture`, if given, names the kinds of receptacles that a
    house may have, and then it has at most one of each."""

    receptacles: Range | None
    copies: Range
    distractors: Range | None
    closed: Range | None
    max_turns: int
    task_types: tuple[str, ...] = TASK_TYPES
    rooms: tuple[str, ...] = ("kitchen", "bedroom", "livingroom", "bathroom")
    furniture: tuple[str, ...] | None = None

    @cached_property
    def rooms_for(self) -> dict[str, dict[str, int]]:
        """The rooms in which each task can be set, by weight, among those that are wanted and large enough."""
        least = self.receptacles[0] if self.receptacles else SMALLEST_HOUSE
        wanted = set(self.furniture or ())
        fit = {
            room
            for room in self.rooms
            if capacity(furnishings().rooms[room]) >= least and wanted <= furnishings().rooms[room].receptacles.keys()
        }
        rooms = {task_type: TASK_ROOMS[task_type].items() for task_type in self.task_types}
        return {task_type: {room: weight for room, weight in known if room in fit} for task_type, known in rooms.items()}

    @cached_property
    def key(self) -> str:
        """Everything that decides which houses are made, as text: their seed."""
        numbers = [self.receptacles, self.copies, self.distractors, None, self.closed]  # None: of a knob that is gone
        return json.dumps([*numbers, self.task_types, self.rooms, *([self.furniture] if self.furniture else [])])


SIZES: dict[str, Knobs] = {
    "tiny": Knobs(receptacles=(5, 5), copies=(1, 1), distractors=(3, 4), closed=(0, 1), max_turns=20),
    "small": Knobs(receptacles=(9, 12), copies=(1, 2), distractors=(6, 10), closed=(2, 4), max_turns=30),
    "full": Knobs(receptacles=None, copies=(1, 3), distractors=None, closed=None, max_turns=50),
}


def capacity(room: Room) -> int:
    """The largest number of receptacles that such a room can have."""
    return sum(most for _, most in room.receptacles.values())


def turn_knobs(
    size: str,
    receptacles: Any = None,
    distractors: Any = None,
    copies: Any = None,
    closed: Any = None,
    task_types: Any = None,
    rooms: Any = None,
    furniture: Any = None,
) -> Knobs:
    """A named size with single knobs changed. A number may be given as one number or as a pair (from, to)."""
    if size not in SIZES:
        raise unknown_name("size of a household:", str(size), SIZES)
    base = SIZES[size]
    pieces = None if furniture is None else _furniture(furniture)
    most = max(capacity(room) for room in furnishings().rooms.values()) if pieces is None else len(pieces)
    receptacles = most if pieces is not None and receptacles is None else receptacles
    knobs = replace(
        base,
        receptacles=base.receptacles if receptacles is None else _range("receptacles", receptacles, SMALLEST_HOUSE, most),
        copies=base.copies if copies is None else _range("copies", copies, 1),
        distractors=base.distractors if distractors is None else _range("distractors", distractors, 0),
        closed=base.closed if closed is None else _range("closed", closed, 0),
        task_types=base.task_types if task_types is None else _names("task type", task_types, TASK_TYPES),
        rooms=base.rooms if rooms is None else _names("room", rooms, furnishings().rooms),
        furniture=pieces,
    )
    possible = tuple(task_type for task_type in knobs.task_types if knobs.rooms_for[task_type])
    if possible == knobs.task_types:
        return knobs
    if task_types is None and possible:
        return replace(knobs, task_types=possible)
    task_type = next(task_type for task_type in knobs.task_types if task_type not in possible)
    large = "" if knobs.receptacles is None else f" with {knobs.receptacles[0]} receptacles"
    large = f" with {', '.join(knobs.furniture)}" if knobs.furniture else large
    raise TurnwiseError(
        f"household: {task_type} needs a {' or '.join(TASK_ROOMS[task_type])}; none of rooms={list(knobs.rooms)}{large} will do. "
        "Leave the task type out, add a room, or ask for fewer receptacles"
    )


def _furniture(furniture: Any) -> tuple[str, ...]:
    pieces = _names("piece of furniture", furniture, sorted({kind for room in furnishings().rooms.values() for kind in room.receptacles}))
    if len(pieces) < SMALLEST_HOUSE:
        raise TurnwiseError(f"household: a house has at least {SMALLEST_HOUSE} receptacles, got furniture={list(pieces)}")
    return pieces


def _range(name: str, value: Any, least: int, most: int | None = None) -> Range:
    pair = (value, value) if isinstance(value, int) else value
    if not (isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2 and all(type(n) is int for n in pair)):
        raise TurnwiseError(f"household: {name} is an integer or a pair (from, to), got {value!r}")
    low, high = pair
    if low > high:
        raise TurnwiseError(f"household: {name} from {low} to {high} is empty: the first number must not be larger")
    if low < least or (most is not None and low > most):
        limits = f"at least {least}" if most is None else f"{least} to {most}"
        given = str(low) if low == high else f"{low} to {high}"
        raise TurnwiseError(f"household: {name} must be {limits}, got {given}")
    return low, high


def _names(kind: str, value: Any, known: Iterable[str]) -> tuple[str, ...]:
    known = tuple(known)
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, Sequence) else None
    if not names:
        raise TurnwiseError(f"household: give at least one {kind}, as a list of {', '.join(known)}; got {value!r}")
    for name in names:
        if name not in known:
            raise unknown_name(f"{kind} of a household:", str(name), known)
    return tuple(name for name in known if name in names)
