"""What a player of the household (and of ALFWorld) can know from the texts so far: where things are, and what was done to them. For methods
that compare what an agent believes with what it has seen."""

from __future__ import annotations

import re
from typing import Any

from turnwise.data.rollouts import Trajectory

THING = r"[a-z]+ \d+"
PLACED = re.compile(rf"(?:On|In) the ({THING}), you see ([^.]*)")
INSIDE = re.compile(rf"[Tt]he ({THING}) is open\. In it, you see ([^.]*)")
TAKEN = re.compile(rf"You (?:pick up|take) the ({THING}) from")
MOVED = re.compile(rf"You (?:move|put) the ({THING}) (?:to|in/on|in|on) the ({THING})")
CHANGED = re.compile(rf"You (heat|cool|clean) the ({THING})")
STATES = {"heat": "hot", "cool": "cool", "clean": "clean"}
HAND = "in_hand"


def facts(trajectory: Trajectory) -> list[dict[str, Any]]:
    """For each turn: its `phase`, known places of things (`objects`) and what was done to things (`states`)."""
    places: dict[str, str] = {}
    states: dict[str, str] = {}
    by_turn = []
    for turn in trajectory.turns:
        text = turn.observation
        for place, things in (*PLACED.findall(text), *INSIDE.findall(text)):
            places |= dict.fromkeys(re.findall(THING, things), place)
        places |= dict.fromkeys(TAKEN.findall(text), HAND) | dict(MOVED.findall(text))
        states |= {thing: STATES[verb] for verb, thing in CHANGED.findall(text)}
        by_turn.append({"phase": "place" if HAND in places.values() else "find", "objects": dict(places), "states": dict(states)})
    return by_turn
