"""What a player of the household (and of ALFWorld) can know from the texts so far: where things are, and what was done to them.

`facts` is for methods that compare what an agent believes with what it has seen, `state_block` for prompts without a history.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from turnwise.data.rollouts import Trajectory

THING = r"[a-z]+ \d+"
PLACED = re.compile(rf"(?:On|In) the ({THING}), you see ([^.]*)")
INSIDE = re.compile(rf"[Tt]he ({THING}) is open\. In it, you see ([^.]*)")
TAKEN = re.compile(rf"You (?:pick up|take) the ({THING}) from")
MOVED = re.compile(rf"You (?:move|put) the ({THING}) (?:to|in/on|in|on) the ({THING})")
CHANGED = re.compile(rf"You (heat|cool|clean) the ({THING})")
STATES = {"heat": "hot", "cool": "cool", "clean": "clean"}
HAND = "in_hand"
LISTED = re.compile(r"\ba ([a-z]+ \d+)")
SEEN = re.compile(r"(?:On|In) (?:the )?([a-z]+ \d+|it), you see (.*?)\.")
ROOM = re.compile(r"Looking quickly around you, you see (.*?)\.")
MOVES = re.compile(r"You (arrive at|pick up the|move the|put the) ([a-z]+ \d+)(?: (?:from|to|in/on|in|on) the ([a-z]+ \d+))?")
CHANGES = re.compile(r"You (heat|cool|clean|slice) the ([a-z]+ \d+)")


class Played(Protocol):
    """A turn that was played: what was seen before it."""

    @property
    def observation(self) -> str: ...


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


def state_block(goal: str, turns: Sequence[Played], observation: str) -> str:
    """Where the agent is, what it holds and did to it, what was seen where, and which places were not looked at."""
    here, held, places = "", "", dict.fromkeys(LISTED.findall("".join(ROOM.findall(turns[0].observation if turns else observation))))
    contents: dict[str, list[str]] = {}
    done: list[str] = []
    for text in [past.observation for past in turns[1:]] + ([observation] if turns else []):
        for verb, thing, place in MOVES.findall(text):
            if verb == "arrive at":
                here = thing
            elif verb == "pick up the":
                held = thing
                contents[place] = [other for other in contents.get(place, []) if other != thing]
            elif verb in ("move the", "put the"):
                held = "" if held == thing else held
                contents.setdefault(place, []).append(thing)
        for place, listed in SEEN.findall(text):
            contents[here if place == "it" else place] = LISTED.findall(f"a {listed.removeprefix('a ')}")
        done += [f"{verb} {thing}" for verb, thing in CHANGES.findall(text)]
    seen = [f"{place}: {', '.join(things) or 'nothing'}" for place, things in contents.items() if place]
    left = [place for place in places if place not in contents]
    lines = [("At", here), ("Holding", held or ("nothing" if turns else "")), ("Done", ", ".join(dict.fromkeys(done)))]
    lines += [("Seen", "; ".join(seen)), ("Not looked at", ", ".join(left) if turns else "")]
    return "\n".join(f"{name}: {text}" for name, text in lines if text)
