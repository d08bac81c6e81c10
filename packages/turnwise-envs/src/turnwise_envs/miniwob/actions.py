"""An action as text: what a model may write, and what it means. Anything else is answered with a line that helps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnwise_envs.miniwob.page import KEYS, LONGEST

USAGE = 'click N, click X Y, type N "text", select N "option", press KEY, scroll up, scroll down, hover N, drag N to M, wait'
SPOT = r"\[?(\d{1,4})\]?(?:[ ,]+(\d{1,4}))?"
CLICK = re.compile(rf"(click|hover) {SPOT}", re.IGNORECASE)
DRAG = re.compile(rf"drag {SPOT} to {SPOT}", re.IGNORECASE)
WORDS = re.compile(r"(type|select) \[?(\d{1,4})\]?(?: (.*))?", re.IGNORECASE | re.DOTALL)
SCROLL = re.compile(r"scroll (?:\[?(\d{1,4})\]? )?(up|down)", re.IGNORECASE)
PRESS = re.compile(r"press (\S{1,12})", re.IGNORECASE)
NAMES = {
    "return": "enter",
    "esc": "escape",
    "arrowup": "up",
    "arrowdown": "down",
    "arrowleft": "left",
    "arrowright": "right",
    "del": "delete",
}

FORBIDDEN = {0: None, ord("<"): None}  # some pages write what is typed as HTML: without "<" it stays text

Spot = int | tuple[int, int]


@dataclass(frozen=True)
class Move:
    """What to do: `at` is the number of an element or a point, `to` where a drag ends, `words` a text, a key or a direction."""

    verb: str
    at: Spot = 0
    to: Spot = 0
    words: str = ""


class Malformed(ValueError):
    """Not an action. The message is for the agent."""


def read_action(action: str) -> Move:
    """The move that a text stands for."""
    text = " ".join(action.split()) if '"' not in action else action.strip()
    if found := CLICK.fullmatch(text):
        return Move(found[1].lower(), _spot(found[2], found[3]))
    if found := WORDS.fullmatch(text):
        return Move(found[1].lower(), int(found[2]), words=_unquoted(found[3] or ""))
    if found := DRAG.fullmatch(text):
        return Move("drag", _spot(found[1], found[2]), _spot(found[3], found[4]))
    if found := SCROLL.fullmatch(text):
        return Move("scroll", int(found[1] or 0), words=found[2].lower())
    if found := PRESS.fullmatch(text):
        return Move("press", words=_key(found[1]))
    if text.lower() == "wait":
        return Move("wait")
    raise Malformed(f"That is not an action. Actions: {USAGE}")


def _spot(first: str, second: str | None) -> Spot:
    return int(first) if second is None else (int(first), int(second))


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return text.encode("utf-8", "ignore").decode().translate(FORBIDDEN)[:LONGEST]


def _key(name: str) -> str:
    """The name of a key as the page takes it."""
    low = name.lower().replace("ctrl+", "control+").replace("control-", "control+")
    low = NAMES.get(low, low)
    if low in KEYS or low in ("control+a", "control+c", "control+v", "control+x"):
        return low
    if len(name) == 1 and name.isprintable() and name != "<":
        return name
    raise Malformed(f"There is no such key. Keys: {', '.join(KEYS)}, control+a, control+c, control+v, control+x, or one character")
