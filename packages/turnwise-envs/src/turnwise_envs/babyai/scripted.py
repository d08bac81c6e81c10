"""A simple rule for BabyAI: walk to what the mission names if it is in view, otherwise wander. It knows the mission and what it sees."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnwise.util.seeds import derive
from turnwise_envs.babyai.words import Place, Scene, Thing

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE = range(6)
WISH = re.compile(r"(go to|pick up|open|put) (.+?)(?: next to (.+))?$")
WANTED = re.compile(r"(?:a|the) (?:(red|green|blue|purple|yellow|grey) )?(ball|box|key|door|object)\b")


@dataclass(frozen=True)
class Wish:
    """One part of a mission: what to do, with what, next to what. A missing colour or kind fits all."""

    verb: str
    what: tuple[str, str]
    near: tuple[str, str] | None


def wishes(mission: str) -> list[Wish]:
    """The parts of a mission in the order in which they are to be done."""
    last, _, first = mission.partition(" after you ")
    parts = re.split(r", then | and ", f"{first}, then {last}" if first else mission)
    found = [match for part in parts if (match := WISH.match(part.strip(" .")))]
    return [Wish(match[1], what, _wanted(match[3] or "")) for match in found if (what := _wanted(match[2])) is not None]


def _wanted(text: str) -> tuple[str, str] | None:
    match = WANTED.search(text)
    return None if match is None else (match[1] or "", "" if match[2] == "object" else match[2])


class Walker:
    """The rule. It remembers which parts of the mission it has done, and the rest of a short detour."""

    def __init__(self, mission: str):
        self._wishes = wishes(mission)
        self._next: list[int] = []

    def act(self, scene: Scene, turn: int) -> int:
        """The next action."""
        while self._next:
            planned = self._next.pop(0)
            if planned != FORWARD or _free(scene, (1, 0)):
                return planned
        for wish in self._wishes:
            verb, what = self._now(wish, scene)
            target = next((found for found in scene.things if _fits(found, what)), None)
            if target is None or (verb == "go to" and target.place == (1, 0)):
                continue
            if verb == "bring" and abs(target.place[0] - 1) + abs(target.place[1]) == 1 and _free(scene, (1, 0)):
                return DROP
            if target.place == (1, 0) and verb != "bring":
                return self._use(verb, wish, scene)
            return self._approach(scene, target.place, turn)
        return _wander(scene, turn)

    def _now(self, wish: Wish, scene: Scene) -> tuple[str, tuple[str, str]]:
        """What to do now for a wish: a thing is brought once it is carried, and a locked door needs its key first."""
        carried = scene.carried
        if wish.verb == "put" and wish.near is not None and carried is not None and _fits(carried, wish.what):
            return "bring", wish.near
        if wish.verb == "open":
            door = next((found for found in scene.things if _fits(found, wish.what)), None)
            locked = door is not None and door.state == "locked"
            if door is not None and locked and not (carried is not None and (carried.colour, carried.kind) == (door.colour, "key")):
                return "fetch", (door.colour, "key")
        return wish.verb, wish.what

    def _use(self, verb: str, wish: Wish, scene: Scene) -> int:
        """Do what is wished with the thing straight ahead."""
        if verb != "open" and scene.carried is not None:
            self._next = [DROP, LEFT]
            return RIGHT
        if verb in ("open", "pick up"):
            self._wishes = [other for other in self._wishes if other is not wish] or self._wishes
        return TOGGLE if verb == "open" else PICK_UP

    def _approach(self, scene: Scene, place: Place, turn: int) -> int:
        """A step towards a place: forward as long as it is ahead, then a turn; around what is in the way by a detour."""
        ahead, right = place
        if ahead > 0 and _free(scene, (1, 0)):
            return FORWARD
        if right and (ahead <= 0 or _free(scene, (0, 1 if right > 0 else -1))):
            return RIGHT if right > 0 else LEFT
        if ahead <= 0:
            return RIGHT
        self._next = [FORWARD]
        return LEFT if derive(turn, "babyai detour") % 2 else RIGHT


def _fits(found: Thing, wanted: tuple[str, str]) -> bool:
    return wanted[0] in ("", found.colour) and wanted[1] in ("", found.kind) and found.kind in ("ball", "box", "key", "door")


def _wander(scene: Scene, turn: int) -> int:
    """Forward for a while, through doors, with turns now and then."""
    chance = derive(turn, "babyai wanders") % 8
    ahead = scene.at((1, 0))
    if ahead is not None and ahead.kind == "door" and ahead.state != "open" and chance < 6:
        return TOGGLE
    if _free(scene, (1, 0)) and chance < 6:
        return FORWARD
    return LEFT if chance % 2 else RIGHT


def _free(scene: Scene, place: Place) -> bool:
    found = scene.at(place)
    return place not in scene.walls and (found is None or found.state == "open")
