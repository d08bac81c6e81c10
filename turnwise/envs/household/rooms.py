"""The furniture and the things of generated households and where they belong, read from `rooms.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

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
