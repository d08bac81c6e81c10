"""Texts for Gymnasium's four small classics, which return bare numbers: names of the actions, the goal, and the state in sentences.

Other environments do not need this: their options set the same things.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

HIGHLIGHTED = re.compile(r"\x1b\[(?:\d+;)*4\d(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LAST_ACTION = re.compile(r"^\s*\(\w+\)[ \t]*\n?", re.MULTILINE)  # a picture of the state must not depend on how it was reached


@dataclass(frozen=True)
class Words:
    """The texts of an environment."""

    actions: tuple[str, ...] | None = None
    goal: str = ""
    success: str = "reward"
    draw: bool = False  # show the text rendering
    describe: Callable[[Any, Any], str] | None = None  # (the bare environment, the observation) → text
    mission: Callable[[Any], str] | None = None  # the bare environment → the goal of a task, if it differs between tasks
    anchor: Callable[[Any], bytes] | None = None  # the bare environment → a key of its state, if the text does not show all of it
    seed: Callable[[Any, int], None] | None = None  # (the bare environment, a number): what a reset with a seed leaves out


def drawing(rendered: str) -> str:
    """A text rendering without colours; what was highlighted is in square brackets."""
    text = COLOUR.sub("", HIGHLIGHTED.sub(lambda found: f"[{found[1].strip() or ' '}]", rendered))
    return LAST_ACTION.sub("", text).strip("\n")


def _frozen_lake(env: Any, observation: Any) -> str:
    row, column = divmod(int(observation), int(env.ncol))
    return f"You stand in row {row}, column {column}, counted from 0 at the top left. S start, F ice, H hole, G goal."


def _cliff(env: Any, observation: Any) -> str:
    row, column = divmod(int(observation), int(env.shape[1]))
    return f"You (x) stand in row {row}, column {column}, counted from 0 at the top left. C is the cliff, T the goal."


def _taxi(env: Any, observation: Any) -> str:
    row, column, passenger, destination = (int(part) for part in env.decode(int(observation)))
    places = [f"{letter} (row {place[0]}, column {place[1]})" for letter, place in zip("RGYB", env.locs, strict=True)]
    waits = f"waits at {places[passenger]}" if passenger < len(places) else "sits in the taxi"
    return f"The taxi is in row {row}, column {column}. The passenger {waits} and wants to go to {places[destination]}. | is a wall."


def _blackjack(env: Any, observation: Sequence[Any]) -> str:
    total, dealer, ace = (int(part) for part in observation)
    return f"Your cards make {total}{' with' if ace else ' without'} a usable ace. The dealer shows {'an ace' if dealer == 1 else dealer}."


CLASSICS: dict[str, Words] = {
    "FrozenLake": Words(
        ("left", "down", "right", "up"),
        "walk over the frozen lake to the goal without falling into a hole. The ice may be slippery: a step may then go sideways.",
        draw=True,
        describe=_frozen_lake,
    ),
    "CliffWalking": Words(
        ("up", "right", "down", "left"),
        "walk to the goal in few steps and keep off the cliff: falling costs 100 and brings you back to the start.",
        success="terminated",
        draw=True,
        describe=_cliff,
    ),
    "Taxi": Words(
        ("south", "north", "east", "west", "pickup", "dropoff"),
        "drive to the passenger, pick them up, drive to the destination and drop them off there.",
        draw=True,
        describe=_taxi,
    ),
    "Blackjack": Words(("stick", "hit"), "beat the dealer: come as near to 21 as you can without going over it.", describe=_blackjack),
}


def words_for(name: str) -> Words | None:
    """The texts of a classic by its Gymnasium id (`FrozenLake-v1`, `FrozenLake8x8-v1`), None for any other environment."""
    stem = name.rpartition(":")[2].rpartition("/")[2]
    return next((words for prefix, words in CLASSICS.items() if stem.startswith(prefix)), None)
