"""A house described in plain Python, ready to be played: no game file, no PDDL.

    house = House(
        receptacles=[
            Receptacle("cabinet 1", "cabinet", openable=True), Receptacle("sinkbasin 1", "sinkbasin"), Receptacle("desk 1", "desk")
        ],
        objects=[Item("mug 1", "mug", "cabinet 1", {"pickupable", "cleanable"})],
        fits={"cabinet": {"mug"}, "desk": {"mug"}, "sinkbasin": {"mug"}},
        goal=Goal("pick_clean_then_place_in_recep", "mug", "desk"),
    )
    play = Play(house.world())          # play.text, play.actions, play.step("go to cabinet 1"), play.won
    expert = Expert(house.world())      # expert.plan(play.state)

Names are what the player reads and types, so they must be unique; as in ALFWorld, a name is the kind and a number. Texts list things in
ALFWorld's order: by kind, and downwards by number. Receptacles at the same `location` are reached together. Cleaning happens at a `sink`
or `sinkbasin`, heating at a `microwave`, cooling at a `fridge`, slicing with a `knife` or `butterknife` in the hand.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from turnwise.envs.household.builtin import DOMAIN, GRAMMAR
from turnwise.envs.household.pddl import And, Atom, Condition, Exists, Not, Problem
from turnwise.envs.household.world import World
from turnwise.util.errors import TurnwiseError, unknown_name

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
TRAITS = {
    "pickupable": "pickupable",
    "cleanable": "cleanable",
    "heatable": "heatable",
    "coolable": "coolable",
    "sliceable": "sliceable",
    "toggleable": "toggleable",
    "vessel": "isreceptacleobject",
}
STATES = {"clean": "isclean", "hot": "ishot", "cool": "iscool", "sliced": "issliced", "toggled": "istoggled"}
_TREATED = {
    "pick_clean_then_place_in_recep": ("clean", "cleanable", "isclean"),
    "pick_heat_then_place_in_recep": ("hot", "heatable", "ishot"),
    "pick_cool_then_place_in_recep": ("cool", "coolable", "iscool"),
}
AGENT, MIDDLE = "agent1", "the middle of the room"
_WORDS = re.compile(r"[a-z0-9]+( [a-z0-9]+)*")


@dataclass(frozen=True)
class Receptacle:
    """Something that holds objects. One that can be opened starts closed unless `opened`; `location` defaults to a separate place."""

    name: str
    kind: str
    openable: bool = False
    opened: bool = False
    location: str = ""


@dataclass(frozen=True)
class Item:
    """An object and the receptacle it starts in. `traits`: what can be done with it (TRAITS); `states`: what has been done (STATES)."""

    name: str
    kind: str
    place: str
    traits: Collection[str] = frozenset({"pickupable"})
    states: Collection[str] = frozenset()


@dataclass(frozen=True)
class Goal:
    """The goal: one of TASK_TYPES, the object's kind, and the kind of receptacle (of lamp, for looking)."""

    task_type: str
    object: str
    target: str

    def sentence(self) -> str:
        """The task as text, in ALFWorld's wording."""
        if self.task_type == "look_at_obj_in_light":
            return f"look at {self.object} under the {self.target}."
        if self.task_type == "pick_two_obj_and_place":
            return f"put two {self.object} in {self.target}."
        word = _TREATED[self.task_type][0] + " " if self.task_type in _TREATED else ""
        return f"put a {word}{self.object} in {self.target}."

    def condition(self, shared: Collection[str] = ()) -> Condition:
        """The goal as a condition on facts; `shared` are the words that name both a kind of object and a kind of receptacle."""
        target, item = _type(self.target, "r", shared), _type(self.object, "o", shared)
        if self.task_type == "look_at_obj_in_light":
            lamp = [
                Atom("objecttype", ("?lamp", _type(self.target, "o", shared))),
                Atom("toggleable", ("?lamp",)),
                Atom("istoggled", ("?lamp",)),
            ]
            beside = [Atom("receptacleatlocation", ("?r", "?l")), Atom("atlocation", ("?a", "?l")), Atom("inreceptacle", ("?lamp", "?r"))]
            lit = _exists({"?lamp": "object", "?r": "receptacle", "?a": "agent", "?l": "location"}, *lamp, *beside)
            held = _exists({"?o": "object", "?a": "agent"}, Atom("objecttype", ("?o", item)), Atom("holds", ("?a", "?o")))
            return And((lit, held))
        parts = [Atom("receptacletype", ("?r", target))]
        names = ("?o1", "?o2") if self.task_type == "pick_two_obj_and_place" else ("?o1",)
        for name in names:
            parts += [Atom("objecttype", (name, item)), Atom("inreceptacle", (name, "?r"))]
            if self.task_type in _TREATED:
                parts += [Atom(predicate, (name,)) for predicate in _TREATED[self.task_type][1:]]
        different: list[Condition] = [Not(Atom("=", names))] if len(names) == 2 else []
        return _exists({"?r": "receptacle", **dict.fromkeys(names, "object")}, *parts, *different)


@dataclass(frozen=True)
class House:
    """A whole house with its goal. `fits` says which kinds of objects each kind of receptacle takes (when the player puts them there).

    `sentence` words the task; by default the goal does.
    """

    receptacles: Sequence[Receptacle]
    objects: Sequence[Item]
    fits: Mapping[str, Collection[str]]
    goal: Goal
    sentence: str = field(default="")

    def world(self) -> World:
        """The house, checked and compiled. It can be played any number of times."""
        _check(self)
        ordered: list[Receptacle | Item] = [*self.receptacles, *self.objects]
        ordered.sort(key=lambda thing: (thing.kind, -_number(thing.name), thing.name))
        ids = {thing.name: f"{thing.kind}_bar_{number:04d} {thing.name}" for number, thing in enumerate(ordered)}
        names = {thing: name for name, thing in ids.items()}
        sentence = self.sentence or self.goal.sentence()
        problem = Problem(self._things(ids), tuple(dict.fromkeys(self._facts(ids))), self.goal.condition(self._shared))
        return World(problem, DOMAIN, GRAMMAR, names=names, task=f"Your task is to: {sentence}")

    @cached_property
    def _shared(self) -> frozenset[str]:
        inside = {item.kind for item in self.objects}.union(*self.fits.values())
        return frozenset({receptacle.kind for receptacle in self.receptacles}.union(self.fits) & inside)

    def _things(self, ids: Mapping[str, str]) -> dict[str, str]:
        things = {AGENT: "agent", MIDDLE: "location"}
        for receptacle in self.receptacles:
            things |= {
                ids[receptacle.name]: "receptacle",
                _place(receptacle): "location",
                _type(receptacle.kind, "r", self._shared): "rtype",
            }
        for item in self.objects:
            things |= {ids[item.name]: "object", _type(item.kind, "o", self._shared): "otype"}
        for kind, taken in self.fits.items():
            things |= {_type(kind, "r", self._shared): "rtype"} | {_type(name, "o", self._shared): "otype" for name in taken}
        return things

    def _facts(self, ids: Mapping[str, str]) -> list[tuple[str, ...]]:
        facts: list[tuple[str, ...]] = [("atlocation", AGENT, MIDDLE)]
        places = {receptacle.name: _place(receptacle) for receptacle in self.receptacles}
        for receptacle in self.receptacles:
            thing = ids[receptacle.name]
            facts += [
                ("receptacletype", thing, _type(receptacle.kind, "r", self._shared)),
                ("receptacleatlocation", thing, _place(receptacle)),
            ]
            facts += [("openable", thing)] * receptacle.openable + [("opened", thing)] * receptacle.opened
        for item in self.objects:
            thing = ids[item.name]
            facts += [("objecttype", thing, _type(item.kind, "o", self._shared)), ("inreceptacle", thing, ids[item.place])]
            facts.append(("objectatlocation", thing, places[item.place]))
            facts += [(TRAITS[trait], thing) for trait in sorted(item.traits)] + [(STATES[state], thing) for state in sorted(item.states)]
        facts += [
            ("cancontain", _type(kind, "r", self._shared), _type(name, "o", self._shared))
            for kind, taken in self.fits.items()
            for name in sorted(taken)
        ]
        return facts


def _exists(variables: Mapping[str, str], *parts: Condition) -> Condition:
    return Exists(tuple(variables.items()), And(parts))


def _type(kind: str, letter: str, shared: Collection[str]) -> str:
    """A kind as a separate thing. A word that names both a kind of object and a kind of receptacle makes two of them."""
    return f"{kind}objecttype" if letter == "o" and kind in shared else f"{kind}type"


def _place(receptacle: Receptacle) -> str:
    return f"loc_bar_{receptacle.location or receptacle.name}"


def _number(name: str) -> int:
    last = name.rpartition(" ")[2]
    return int(last) if last.isdecimal() else 0


def _check(house: House) -> None:
    if house.goal.task_type not in TASK_TYPES:
        raise unknown_name("task type", house.goal.task_type, TASK_TYPES)
    seen: set[str] = set()
    things: list[Receptacle | Item] = [*house.receptacles, *house.objects]
    for thing in things:
        if not _WORDS.fullmatch(thing.name) or not _WORDS.fullmatch(thing.kind):
            raise TurnwiseError(
                f"house: {thing.name!r} ({thing.kind!r}): names and kinds are lower-case words and numbers with single spaces"
            )
        if thing.name in seen:
            raise TurnwiseError(f"house: two things are called {thing.name!r}; give each a different number")
        seen.add(thing.name)
    known = {receptacle.name for receptacle in house.receptacles}
    for item in house.objects:
        if item.place not in known:
            raise unknown_name(f"place of {item.name!r}: receptacle", item.place, known)
        for given, allowed, what in ((item.traits, TRAITS, "trait"), (item.states, STATES, "state")):
            for word in given:
                if word not in allowed:
                    raise unknown_name(f"{what} of {item.name!r}", word, allowed)
    for receptacle in house.receptacles:
        if receptacle.opened and not receptacle.openable:
            raise TurnwiseError(f"house: {receptacle.name!r} is opened but cannot be opened; set openable=True")
