"""Unlimited households: a number gives a house, the same on every machine, always solvable, with one of ALFWorld's six tasks.

A house is drawn step by step: the task and the room, the object and its target, the furniture, where the wanted objects are, then
everything else. After the first steps its *core* is known: the room, the task, how many receptacles of each kind there are, and the kinds
of places where the wanted objects are. A hash of the core decides the split, and a house of the wrong split is drawn again. So train,
valid and test share no house by construction, and not even one that differs only in numbers, in other objects or in what is closed. If
the furniture is given, there are too few cores for that: a player that learned where the wanted things are in the training houses would
find them nowhere in the others. In that case the whole house decides, with everything in it.

All random numbers come from `Dice`, whose numbers are hashes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.dice import Dice, endless_tasks
from turnwise.envs.household.house import Goal, House, Item, Receptacle
from turnwise.envs.household.knobs import LAMP, Knobs, capacity, furnishings
from turnwise.util.errors import TurnwiseError, unknown_name

SPLITS: Mapping[str, range] = {"train": range(4), "valid": range(4, 6), "test": range(6, 8)}  # of eight equal parts of all cores
ATTEMPTS = 2_000
STREAM = "household 2"  # the first stream in which no named size repeats a house in the tasks that it has by default
SAME_KIND = 3  # at most three objects of one kind, as in ALFWorld, unless more are requested

APPLIANCES = {
    "pick_clean_then_place_in_recep": "sinkbasin",
    "pick_heat_then_place_in_recep": "microwave",
    "pick_cool_then_place_in_recep": "fridge",
}
TREATABLE = {
    "pick_clean_then_place_in_recep": "cleanable",
    "pick_heat_then_place_in_recep": "heatable",
    "pick_cool_then_place_in_recep": "coolable",
}
HOLDERS_OF_ONE = frozenset({"coffeemachine", "handtowelholder", "towelholder", "toiletpaperhanger"})
SENTENCES = {
    "pick_and_place_simple": ("put a {0} in {1}.", "put some {0} on {1}."),
    "look_at_obj_in_light": ("look at {0} under the {1}.", "examine the {0} with the {1}."),
    "pick_clean_then_place_in_recep": ("put a clean {0} in {1}.", "clean some {0} and put it in {1}."),
    "pick_heat_then_place_in_recep": ("put a hot {0} in {1}.", "heat some {0} and put it in {1}."),
    "pick_cool_then_place_in_recep": ("put a cool {0} in {1}.", "cool some {0} and put it in {1}."),
    "pick_two_obj_and_place": ("put two {0} in {1}.", "find two {0} and put them in {1}."),
}


def generate(knobs: Knobs, split: str, index: int) -> dict[str, Any]:
    """House number `index` of a split, as plain JSON values: what `Task.data` holds and `house` reads. The task types take turns."""
    for attempt in range(ATTEMPTS):
        dice = Dice(f"{STREAM} {knobs.key} {split} {index} {attempt}")
        draft = _Draft(knobs, dice, knobs.task_types[index % len(knobs.task_types)])
        if knobs.furniture is None and draft.part_of_all() in SPLITS[split] and draft.furnish():
            return draft.data()
        if knobs.furniture is not None and draft.furnish() and _part(draft.layout()) in SPLITS[split]:
            return draft.data()
    raise TurnwiseError(
        f"household: with these knobs there are too few different houses to keep the splits apart; none was found for {split!r}. "
        "Allow more receptacles, objects, task types or rooms"
    )


def task(knobs: Knobs, split: str, index: int) -> Task:
    """The same as a task. Its id is made from its content: the same house always has the same id."""
    data = generate(knobs, split, index)
    mark = blake2b(json.dumps(data, sort_keys=True).encode(), digest_size=8).hexdigest()
    return Task(f"{data['task_type']}-{data['object']}-{data['target']}-{mark}", split, data)


@lru_cache(maxsize=64)
def task_set(knobs: Knobs, split: str, n: int | None = None, name: str = "household") -> TaskSet:
    """The first `n` houses of a split, each made on demand. The same set for the same arguments: it remembers the ids of its tasks, which
    a panel is drawn from, and making a thousand houses for them takes longer than a short run."""
    return endless_tasks(name, split, n, lambda index: task(knobs, split, index))


class _Draft:
    """One house being drawn. The constructor draws its core; `furnish` the rest."""

    def __init__(self, knobs: Knobs, dice: Dice, task_type: str):
        self.knobs, self.dice, self.task_type = knobs, dice, task_type
        self.room_name = dice.weighted(knobs.rooms_for[task_type])
        self.room = furnishings().rooms[self.room_name]
        self.object, self.target = dice.weighted(goals(self.room_name, self.task_type, knobs.furniture))
        self.places = {kind: weight for kind, weight in self.room.objects[self.object][1].items() if kind != self.target}
        self.counts = self._furniture()
        self.rooms_of_kind = {kind: [f"{kind} {i + 1}" for i in range(count)] for kind, count in self.counts.items()}
        self.things: list[tuple[str, str]] = []  # kind and place
        least = 2 if self.task_type == "pick_two_obj_and_place" else 1
        for _ in range(max(least, dice.between(knobs.copies))):
            self._lay(self.object, self.places)
        self.copies = len(self.things)
        if self.target == LAMP:
            self._lay(LAMP, self.room.objects[LAMP][1])

    def _furniture(self) -> Counter[str]:
        """How many receptacles of each kind: what the task needs, then what such a room is likely to have."""
        needed = [kind for kind in (APPLIANCES.get(self.task_type), self.target) if kind is not None and kind != LAMP]
        counts = Counter(dict.fromkeys(needed, 1))
        allowed, likely = self.knobs.furniture, self.room.receptacles
        if allowed is not None:
            likely = {kind: (chance, 1) for kind, (chance, _) in likely.items() if kind in allowed}
            self.places = {kind: weight for kind, weight in self.places.items() if kind in allowed}
        if self.target == LAMP:
            counts[self.dice.weighted({kind: weight for kind, weight in self.room.objects[LAMP][1].items() if kind in likely})] += 1
        if not any(kind in counts for kind in self.places):
            counts[self.dice.weighted(self.places)] += 1
        low, high = self.knobs.receptacles or self.room.size
        wanted = self.dice.between((low, max(low, min(high, capacity(self.room)))))
        weights = {kind: _appeal(chance, most, counts[kind]) for kind, (chance, most) in likely.items()}
        for _ in range(wanted - sum(counts.values())):
            kind = self.dice.weighted(weights)
            counts[kind] += 1
            weights[kind] = _appeal(*likely[kind], counts[kind])
        return counts

    def _lay(self, kind: str, places: Mapping[str, int]) -> bool:
        weights = {place: weight for place, weight in places.items() if place in self.rooms_of_kind}
        if weights:
            self.things.append((kind, self.dice.pick(self.rooms_of_kind[self.dice.weighted(weights)])))
        return bool(weights)

    def part_of_all(self) -> int:
        """Which of the eight parts of all houses this one belongs to, by what matters for its task."""
        lying = sorted((kind, _kind(place)) for kind, place in self.things)
        return _part([self.room_name, self.task_type, self.object, self.target, sorted(self.counts.items()), lying])

    def furnish(self) -> bool:
        """Lay out the other objects and close what is closed. False if the room has no place for that many."""
        knobs = self.knobs
        total = self.dice.between(self.room.clutter) - self.copies
        others = self.dice.between(knobs.distractors) if knobs.distractors else max(0, total)
        laid: Counter[str] = Counter()
        weights = {kind: chance for kind, (chance, places) in self.room.objects.items() if self._can_lie(kind, places)}
        limit = max(SAME_KIND, -(-others // max(1, len(weights.keys() - {LAMP}))))
        for _ in range(others):
            if not weights:
                return False
            kind = self.dice.weighted(weights)
            self._lay(kind, self.room.objects[kind][1])
            laid[kind] += 1
            if laid[kind] >= (1 if kind == LAMP else limit):
                del weights[kind]
        self.dice.shuffle(self.things)  # or the wanted object would always be number 1
        names = [name for name in self._receptacles() if _kind(name) in furnishings().openable]
        self.dice.shuffle(names)
        closing = len(names) if self.knobs.closed is None else min(len(names), self.dice.between(self.knobs.closed))
        self.closed, self.opened = set(names[:closing]), set(names[closing:])
        self.sentence = self.dice.pick(SENTENCES[self.task_type]).format(self.object, self.target)
        return True

    def _can_lie(self, kind: str, places: Mapping[str, int]) -> bool:
        wanted = kind == self.object or (kind == LAMP and self.target == LAMP)
        return not wanted and any(place in self.rooms_of_kind for place in places)

    def data(self) -> dict[str, Any]:
        number: Counter[str] = Counter()
        objects = {}
        for kind, place in self.things:
            number[kind] += 1
            objects[f"{kind} {number[kind]}"] = place
        states = {name: "closed" if name in self.closed else "open" if name in self.opened else "" for name in self._receptacles()}
        return {
            "task_type": self.task_type,
            "object": self.object,
            "target": self.target,
            "room": self.room_name,
            "sentence": self.sentence,
            "receptacles": states,
            "objects": dict(sorted(objects.items())),
        }

    def layout(self) -> list[Any]:
        """What can be found out about the house, in plain values, without the wording of its task."""
        data = self.data()
        return [data[key] for key in ("task_type", "object", "target", "room", "receptacles", "objects")]

    def _receptacles(self) -> list[str]:
        return [name for kind in sorted(self.counts) for name in self.rooms_of_kind[kind]]


def _appeal(chance: int, most: int, count: int) -> int:
    """The weight of one more of a kind in a room: the first one by its chance, further ones by how many such rooms have."""
    if count >= most:
        return 0
    return 4 * chance if count == 0 else max(1, chance * (most - count) // 4)


def _part(of: list[Any]) -> int:
    return blake2b(json.dumps(of).encode(), digest_size=1).digest()[0] % 8


def _kind(name: str) -> str:
    return name.rpartition(" ")[0]


@lru_cache(maxsize=64)
def goals(room_name: str, task_type: str, furniture: tuple[str, ...] | None = None) -> dict[tuple[str, str], int]:
    """Possible goals in a room, with this furniture or any: (object, target) by weight. The object can start somewhere else."""
    found, places = _goals(room_name, task_type), furnishings().rooms[room_name].objects
    if furniture is None:
        return found
    possible = {
        (kind, target): weight
        for (kind, target), weight in found.items()
        if (target in furniture or (target == LAMP and any(place in furniture for place in places[LAMP][1])))
        and any(place in furniture and place != target for place in places[kind][1])
        and APPLIANCES.get(task_type, target) in (*furniture, LAMP)
    }
    if not possible:
        raise TurnwiseError(f"household: {task_type} cannot be set in a {room_name} with only {', '.join(furniture)}: add furniture")
    return possible


@lru_cache(maxsize=64)
def _goals(room_name: str, task_type: str) -> dict[tuple[str, str], int]:
    room, traits = furnishings().rooms[room_name], furnishings().traits
    if task_type == "look_at_obj_in_light":
        return {(kind, LAMP): chance for kind, (chance, _) in room.objects.items() if kind != LAMP}
    closed_to_all = {"sinkbasin", APPLIANCES.get(task_type)} | (HOLDERS_OF_ONE if task_type == "pick_two_obj_and_place" else set())
    found: dict[tuple[str, str], int] = {}
    for kind, (chance, places) in room.objects.items():
        if kind == LAMP or TREATABLE.get(task_type, "pickupable") not in traits[kind]:
            continue
        for target, (likely, _) in room.receptacles.items():
            if kind in furnishings().fits[target] and target not in closed_to_all and any(place != target for place in places):
                found[kind, target] = chance * likely
    return found


def house(data: Mapping[str, Any]) -> House:
    """The house that a task's data describes, for the simulator. Also reads houses that were written by hand."""
    try:
        receptacles = [
            Receptacle(name, _kind(name), openable=state != "", opened=state == "open") for name, state in data["receptacles"].items()
        ]
        objects = [Item(name, _kind(name), place, frozenset(_traits(_kind(name)))) for name, place in data["objects"].items()]
        goal = Goal(data["task_type"], data["object"], data["target"])
        kinds = {item.kind for item in objects}
        fits = {kind: furnishings().fits.get(kind, frozenset()) & kinds for kind in sorted({r.kind for r in receptacles})}
        return House(receptacles, objects, fits, goal, data.get("sentence", ""))
    except (KeyError, AttributeError, TypeError) as error:
        raise TurnwiseError(
            f"a household task needs task_type, object, target, receptacles (name -> '', 'open' or 'closed') and objects (name -> place): "
            f"{type(error).__name__} {error}"
        ) from None


def _traits(kind: str) -> tuple[str, ...]:
    known = furnishings().traits
    if kind not in known:
        raise unknown_name("kind of object in a household:", kind, known)
    return known[kind]
