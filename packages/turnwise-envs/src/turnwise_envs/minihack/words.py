"""NetHack's screen as text: what is near, what can be seen, messages, condition and inventory. Nothing here needs the packages.

The arrays are those of the package nle: `chars` and `screen_descriptions` of 21 × 79 cells, the numbers of the bottom line (`blstats`),
the message, and the inventory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import numpy as np

from turnwise_envs.babyai.words import where

Show = Literal["words", "map", "both"]
COMPASS = ("north", "south", "east", "west")
NEIGHBOURS = {
    "north": (-1, 0),
    "northeast": (-1, 1),
    "east": (0, 1),
    "southeast": (1, 1),
    "south": (1, 0),
    "southwest": (1, -1),
    "west": (0, -1),
    "northwest": (-1, -1),
}
SHORT = {"floor of a room": "floor", "dark part of a room": "dark floor", "": "dark", "lit corridor": "corridor", "stone": "rock"}
TERRAIN = {"floor", "dark floor", "dark", "wall", "corridor", "rock", "solid rock", "doorway", "no door", "broken door"}
MOST_ALIKE = 3  # things of one name that are listed one by one
HUNGER = ("", "", "Hungry", "Weak", "Fainting", "Fainted", "Starved")
CONDITIONS = (
    *("Stoned", "Slimed", "Strangled", "FoodPois", "TermIll", "Blind", "Deaf", "Stunned", "Confused", "Hallucinating"),
    *("Levitating", "Flying", "Riding"),
)
X, Y, GOLD, HP, HP_MAX, DEPTH, ARMOUR, LEVEL, HUNGRY, CONDITION = 0, 1, 13, 10, 11, 12, 16, 18, 21, 25
COUNTERS = (9, 20)  # score and time: they change without a change of state
QUESTION = re.compile(r"\[([^\]]*)\]")


class Seen(NamedTuple):
    """A cell with something in it: steps south and east of the hero, and its name."""

    south: int
    east: int
    name: str


def text_of(data: Any) -> str:
    """The text of an array of characters that ends at the first zero."""
    return _decoded(np.asarray(data, np.uint8).tobytes())


@lru_cache(maxsize=4096)
def _decoded(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("latin-1").strip()


def name_at(seen: Mapping[str, Any], row: int, column: int) -> str:
    """What is in a cell; empty if nothing is known about it."""
    rows, columns = seen["chars"].shape
    if not (0 <= row < rows and 0 <= column < columns) or int(seen["chars"][row, column]) in (0, 32):
        return ""
    if "screen_descriptions" in seen:
        return text_of(seen["screen_descriptions"][row, column])
    return chr(int(seen["chars"][row, column]))


def hero(seen: Mapping[str, Any]) -> tuple[int, int]:
    """Row and column of the hero."""
    return int(seen["blstats"][Y]), int(seen["blstats"][X])


def things(seen: Mapping[str, Any]) -> list[Seen]:
    """Everything on the map that is not plain floor, wall or rock, nearest first."""
    row, column = hero(seen)
    found = []
    told = seen.get("screen_descriptions")
    for y, x in np.argwhere(np.asarray(seen["chars"]) != 32).tolist():
        name = name_at(seen, y, x) if told is None else _decoded(told[y, x].tobytes())
        if (y, x) != (row, column) and SHORT.get(name, name) not in TERRAIN:
            found.append(Seen(y - row, x - column, name))
    return sorted(found, key=lambda thing: (max(abs(thing.south), abs(thing.east)), thing))


def described(seen: Mapping[str, Any], show: Show = "words", inventory: bool = True) -> str:
    """The whole observation as text."""
    parts = [text_of(seen["message"])]
    if show != "map":
        parts += [_list(things(seen)), _around(seen)]
    if show != "words":
        parts.append(drawn(seen))
    parts.append(condition(seen["blstats"]))
    if inventory and (carried := list(_inventory(seen))):
        parts.append("You have:\n" + "\n".join(carried))
    return "\n".join(part for part in parts if part)


def drawn(seen: Mapping[str, Any]) -> str:
    """The part of the map that is known, without empty rows and columns."""
    chars = np.asarray(seen["chars"])
    known = np.argwhere((chars != 32) & (chars != 0))
    if not len(known):
        return ""
    (top, left), (bottom, right) = known.min(axis=0), known.max(axis=0)
    return "\n".join(bytes(row).decode("latin-1").rstrip() for row in chars[top : bottom + 1, left : right + 1].astype(np.uint8))


def condition(numbers: Any) -> str:
    """Health and such. Score and time are left out."""
    said = [f"HP {int(numbers[HP])} of {int(numbers[HP_MAX])}", f"level {int(numbers[LEVEL])}", f"armour class {int(numbers[ARMOUR])}"]
    said += [f"{int(numbers[GOLD])} gold"] if numbers[GOLD] else []
    said += [f"dungeon level {int(numbers[DEPTH])}"] if numbers[DEPTH] > 1 else []
    said += [HUNGER[int(numbers[HUNGRY])]] if 0 <= numbers[HUNGRY] < len(HUNGER) and HUNGER[int(numbers[HUNGRY])] else []
    if len(numbers) > CONDITION:
        said += [name for bit, name in enumerate(CONDITIONS) if int(numbers[CONDITION]) >> bit & 1]
    return ", ".join(said) + "."


def choices(message: str) -> tuple[str, ...]:
    """The letters that a question offers: "What do you want to eat? [ac-e or ?*]" offers a, c, d, e."""
    match = QUESTION.search(message)
    if match is None or "?" not in message:
        return ()
    letters = match[1].partition(" or ")[0].replace(" ", "")
    found: list[str] = []
    for first, last in re.findall(r"([A-Za-z$#])(?:-([A-Za-z]))?", letters):
        found += [chr(code) for code in range(ord(first), ord(last or first) + 1)]
    return tuple(dict.fromkeys(found))


def key(seen: Mapping[str, Any], asking: bool) -> bytes:
    """16 bytes that are equal for equal states: the map, the bottom line without counters, the inventory, a question that is open."""
    numbers = np.array(seen["blstats"])
    numbers[[place for place in COUNTERS if place < len(numbers)]] = 0
    whole = blake2b(digest_size=16)
    for part in (seen["glyphs"], numbers, *(seen[name] for name in ("inv_strs", "inv_letters") if name in seen)):
        whole.update(np.ascontiguousarray(part).tobytes())
    if asking:
        whole.update(text_of(seen["message"]).encode())
    return whole.digest()


def _list(found: list[Seen]) -> str:
    alike: dict[str, list[Seen]] = {}
    for thing in found:
        alike.setdefault(thing.name, []).append(thing)
    lines = [f"{thing.name} {where((-thing.south, thing.east), COMPASS)}" for thing in found if alike[thing.name].index(thing) < MOST_ALIKE]
    lines += [f"{len(group) - MOST_ALIKE} more: {name}" for name, group in alike.items() if len(group) > MOST_ALIKE]
    return "\n".join(["You see:", *lines]) if lines else ""


def _around(seen: Mapping[str, Any]) -> str:
    row, column = hero(seen)
    by_name: dict[str, list[str]] = {}
    for way, (south, east) in NEIGHBOURS.items():
        name = name_at(seen, row + south, column + east)
        by_name.setdefault(SHORT.get(name, name), []).append(way)
    return "Next to you: " + "; ".join(f"{name} {', '.join(ways)}" for name, ways in by_name.items()) + "."


def _inventory(seen: Mapping[str, Any]) -> Iterator[str]:
    if "inv_strs" not in seen or "inv_letters" not in seen:
        return
    for letter, words in zip(seen["inv_letters"], seen["inv_strs"], strict=False):
        if text := text_of(words):
            yield f"{chr(int(letter))}: {text}"
