"""An expert with access to the true state: the shortest plan that it can find to win, from any reachable state.

ALFWorld's goals have two forms: a number of objects of a kind, each treated in a certain way, in one receptacle of a kind; or an object
of a kind held in the light of a lamp. A plan for either is a chain of errands (fetch, treat, deliver), so instead of searching the expert
lists the candidate chains and takes the shortest. Receptacles and objects that are equivalent for every chain are tried once. A held
object that is of no use is first put down where that costs least.

The same expert can play with a player's knowledge (`search`): it looks into one receptacle after another until what it has seen is enough
for a plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations

from turnwise.envs.household.pddl import And, Atom, Condition, Exists, Not, atoms_of
from turnwise.envs.household.world import Command, State, World
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

# What makes a state true of an object: the action, and the trait that the object needs for it.
TREATMENTS = {"isclean": ("cleanobject", "cleanable"), "ishot": ("heatobject", "heatable"), "iscool": ("coolobject", "coolable")}
NEEDED = ("gotolocation", "openobject", "pickupobject", "putobject")


@dataclass(frozen=True)
class Placement:
    """`count` objects of type `kind`, each with all `states`, in one receptacle of type `target`."""

    kind: str
    target: str
    states: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Lighting:
    """An object of type `kind` in the hands, next to a toggled lamp of type `lamp`."""

    kind: str
    lamp: str


def read_goal(goal: Condition) -> Placement | Lighting:
    """The goal's form. This expert does not know other goals than ALFWorld's."""
    blocks = [list(_flat(part)) for part in _parts(goal)]
    atoms = [part for block in blocks for part in block if isinstance(part, Atom)]
    kinds = {atom.args[0]: atom.args[1] for atom in atoms if atom.predicate == "objecttype"}
    lamps = [atom.args[0] for atom in atoms if atom.predicate == "istoggled"]
    held = [atom.args[1] for atom in atoms if atom.predicate == "holds"]
    if len(blocks) == 2 and len(lamps) == len(held) == 1:
        return Lighting(kinds[held[0]], kinds[lamps[0]])
    targets = {atom.args[1] for atom in atoms if atom.predicate == "receptacletype"}
    placed = {atom.args[0] for atom in atoms if atom.predicate == "inreceptacle"}
    states = {atom.predicate for atom in atoms if atom.predicate in TREATMENTS}
    known = {"objecttype", "receptacletype", "inreceptacle", *TREATMENTS, *(trait for _, trait in TREATMENTS.values())}
    wanted = {kinds.get(name) for name in placed}
    if len(blocks) == 1 and len(targets) == len(wanted) == 1 and all(atom.predicate in known for atom in atoms):
        return Placement(str(wanted.pop()), targets.pop(), tuple(sorted(states)), len(placed))
    raise TurnwiseError("the expert knows ALFWorld's six kinds of goals; this game's goal is another")


def _parts(goal: Condition) -> tuple[Condition, ...]:
    return tuple(part for inner in goal.parts for part in _parts(inner)) if isinstance(goal, And) else (goal,)


def _flat(condition: Condition) -> Iterator[Condition]:
    inner = condition.part if isinstance(condition, Not) else condition
    if isinstance(condition, Exists):
        yield from _flat(condition.part)
    elif isinstance(condition, And):
        for part in condition.parts:
            yield from _flat(part)
    elif isinstance(inner, Atom) and (inner is condition or inner.predicate == "="):
        yield condition
    else:
        raise TurnwiseError("the expert knows ALFWorld's six kinds of goals; this game's goal is another")


class Chain:
    """A plan in progress: where the agent is after it, and what it has opened."""

    __slots__ = ("expert", "opened", "place", "steps")

    def __init__(self, expert: Expert, place: int, opened: set[int], steps: list[Command]):
        self.expert, self.place, self.opened, self.steps = expert, place, opened, steps

    def copy(self) -> Chain:
        return Chain(self.expert, self.place, set(self.opened), list(self.steps))

    def go(self, receptacle: int) -> Chain:
        place = self.expert.place_of[receptacle]
        if place != self.place:
            self._add("gotolocation", {"?lstart": self.place, "?lend": place, "?r": receptacle})
            self.place = place
        return self

    def reach_into(self, receptacle: int) -> Chain:
        self.go(receptacle)
        if receptacle in self.expert.openable and receptacle not in self.opened:
            self._add("openobject", {"?l": self.place, "?r": receptacle})
            self.opened.add(receptacle)
        return self

    def take(self, item: int, receptacle: int) -> Chain:
        self.reach_into(receptacle)._add("pickupobject", {"?l": self.place, "?o": item, "?r": receptacle})
        return self

    def put(self, item: int, receptacle: int) -> Chain:
        expert = self.expert
        kinds = {"?ot": expert.item_type[item], "?rt": expert.receptacle_type[receptacle]}
        self.reach_into(receptacle)._add("putobject", {"?l": self.place, "?o": item, "?r": receptacle, **kinds})
        return self

    def treat(self, item: int, action: str, station: int) -> Chain:
        self.go(station)._add(action, {"?l": self.place, "?o": item, "?r": station})
        return self

    def use(self, lamp: int, receptacle: int) -> Chain:
        self.go(receptacle)._add("toggleobject", {"?l": self.place, "?o": lamp, "?r": receptacle})
        return self

    def _add(self, action: str, things: dict[str, int]) -> None:
        things["?a"] = self.expert.agent
        number, names = self.expert.actions[action]
        self.steps.append((number, tuple(things[name] for name in names)))


class Scene:
    """What the expert reads from a state: where things are, what is held, and how each thing was treated."""

    def __init__(self, expert: Expert, state: State, known: Collection[int] | None = None):
        """`known`, if given, are the receptacles whose contents may be used."""
        self.state = state
        self.place = next(iter(state.facts("atlocation")))[1]
        self.opened = {fact[0] for fact in state.facts("opened")}
        self.held = next((fact[1] for fact in state.facts("holds")), None)
        self.homes: dict[int, list[int]] = {}
        for item, receptacle in sorted(state.facts("inreceptacle")):
            if receptacle in expert.place_of and (known is None or receptacle in known):
                self.homes.setdefault(item, []).append(receptacle)

    def has(self, item: int, predicate: str) -> bool:
        return (item,) in self.state.facts(predicate)

    def put_down(self, receptacle: int) -> Scene:
        """The scene after what is held was put there."""
        after = object.__new__(Scene)
        after.state, after.place, after.opened = self.state, self.place, self.opened
        assert self.held is not None
        after.homes = {**self.homes, self.held: [*self.homes.get(self.held, ()), receptacle]}
        after.held = None
        return after


class Expert:
    """Plans for one world. `plan(state)` gives commands; the last one wins."""

    def __init__(self, world: World):
        self.world = world
        rules = world.rules
        self.goal = read_goal(world.problem.goal)
        missing = [name for name in NEEDED if name not in rules.numbers]
        if missing:
            raise TurnwiseError(f"the expert needs the actions of ALFWorld's domain; this game lacks {', '.join(missing)}")
        self.actions = {name: (number, rules.actions[number].parameters) for name, number in rules.numbers.items()}
        self.agent = world.facts["atlocation"][0][0]
        self.place_of = dict(_pairs(world, "receptacleatlocation"))
        self.receptacles_at: dict[int, list[int]] = {}
        for receptacle, place in self.place_of.items():
            self.receptacles_at.setdefault(place, []).append(receptacle)
        self.receptacle_type = dict(_pairs(world, "receptacletype"))
        self.item_type = dict(_pairs(world, "objecttype"))
        self.fits = set(world.facts.get("cancontain", ()))
        self.openable = {fact[0] for fact in world.facts.get("openable", ())}
        self.pickupable = {fact[0] for fact in world.facts.get("pickupable", ())}
        self.stations = {state: self._stations(action) for state, (action, _) in TREATMENTS.items()}

    def _stations(self, action: str) -> list[int]:
        """The receptacles at which an action can be done: those of a type that its precondition names."""
        for known in self.world.rules.domain.actions:
            if known.name == action:
                atoms = atoms_of(known.precondition)
                kinds = {self.world.numbers.get(atom.args[1]) for atom in atoms if atom.predicate == "receptacletype"}
                return [receptacle for receptacle, kind in self.receptacle_type.items() if kind in kinds and receptacle in self.place_of]
        return []

    def plan(self, state: State) -> list[str]:
        """Commands that win from `state`; empty if it is already won. An error if the expert finds none."""
        if plan := self.plan_with(state, None):
            return plan
        if state.won():
            return []
        raise TurnwiseError("the expert sees no way to win from here: what the goal needs is not there, or cannot be put down")

    def plan_with(self, state: State, known: Collection[int] | None) -> list[str]:
        """Like `plan`, with only the contents of the `known` receptacles (None: all of them); empty if that is not enough."""
        if state.won():
            return []
        scene = Scene(self, state, known)
        start = Chain(self, scene.place, set(scene.opened), [])
        chains = list(self._chains(scene, start))
        if scene.held is not None:
            kind = self.item_type.get(scene.held)
            takers = [place for place in self.place_of if (self.receptacle_type.get(place), kind) in self.fits]
            for receptacle in self._distinct(takers, scene, start):
                chains += self._chains(scene.put_down(receptacle), start.copy().put(scene.held, receptacle))
        for chain in sorted(chains, key=lambda chain: len(chain.steps)):
            if plan := self._commands(state.copy(), chain.steps):
                return plan
        return []

    def in_sight(self, state: State) -> set[int]:
        """The receptacles whose contents are visible from the agent's location."""
        here = self.receptacles_at.get(next(iter(state.facts("atlocation")))[1], ())
        opened = state.facts("opened")
        return {receptacle for receptacle in here if receptacle not in self.openable or (receptacle,) in opened}

    def search(self, state: State, known: Collection[int]) -> list[str]:
        """Commands that show the contents of a receptacle that is not `known`: the one at the agent's location, otherwise a pseudo-random
        one that depends on the house and on what is known."""
        scene = Scene(self, state)
        unknown = sorted(receptacle for receptacle in self.place_of if receptacle not in known)
        if not unknown:
            return []
        here = next((receptacle for receptacle in unknown if self.place_of[receptacle] == scene.place), None)
        chance = derive(self.world.base, "search", *sorted(known)) % len(unknown)
        chain = Chain(self, scene.place, set(scene.opened), []).reach_into(unknown[chance] if here is None else here)
        return list(self._words(state.copy(), chain.steps))

    def _words(self, state: State, steps: list[Command]) -> Iterator[str]:
        """The steps as text; each is applied to `state` before the next one is worded."""
        for number, things in steps:
            yield self.world.rules.actions[number].command(state.containers, self.world.constants, self.world, things)
            state.apply((number, things))

    def _commands(self, state: State, steps: list[Command]) -> list[str]:
        """The steps as text, up to the first that wins; None if they do not win after all."""
        said: list[str] = []
        for words in self._words(state, steps):
            if said and state.won():
                return said
            said.append(words)
        return said if state.won() else []

    def _busy(self, scene: Scene) -> set[int]:
        """The places that a plan may visit anyway: already being there saves a step."""
        wanted = self._of_kind(self.goal.kind) + (self._of_kind(self.goal.lamp) if isinstance(self.goal, Lighting) else [])
        homes = {self.place_of[home] for item in wanted for home in scene.homes.get(item, ())}
        return homes | {self.place_of[station] for stations in self.stations.values() for station in stations} | {scene.place}

    def _distinct(self, receptacles: Iterable[int], scene: Scene, chain: Chain) -> list[int]:
        """One receptacle of each class that makes a difference for a plan's length."""
        busy = self._busy(scene) | {chain.place}
        ends: dict[int, list[bool]] = {}
        for target in self._targets():
            ends.setdefault(self.place_of[target], []).append(self._closed(target, chain))
        found: dict[tuple[object, ...], int] = {}
        for receptacle in receptacles:
            place = self.place_of[receptacle]
            sort = (place,) if place in busy else tuple(sorted(ends.get(place, ())))
            inside = tuple(item for item in self._of_kind(self.goal.kind) if receptacle in scene.homes.get(item, ()))
            found.setdefault((self._closed(receptacle, chain), place in busy, sort, inside), receptacle)
        return list(found.values())

    def _closed(self, receptacle: int, chain: Chain) -> bool:
        return receptacle in self.openable and receptacle not in chain.opened

    def _targets(self) -> list[int]:
        if isinstance(self.goal, Lighting):
            return []
        number = self.world.numbers.get(self.goal.target)
        return [place for place, kind in self.receptacle_type.items() if kind == number and place in self.place_of]

    def _of_kind(self, kind: str) -> list[int]:
        number = self.world.numbers.get(kind)
        return [item for item, known in self.item_type.items() if known == number]

    def _chains(self, scene: Scene, start: Chain) -> Iterator[Chain]:
        if isinstance(self.goal, Placement):
            yield from self._placements(self.goal, scene, start)
        else:
            yield from self._lightings(self.goal, scene, start)

    def _fetch(self, item: int, scene: Scene, start: Chain) -> list[Chain]:
        """Chains after which `item` is in the hands."""
        if scene.held is not None:
            return [start.copy()] if scene.held == item else []
        if item not in self.pickupable:
            return []
        return [start.copy().take(item, home) for home in scene.homes.get(item, ())]

    def _lightings(self, goal: Lighting, scene: Scene, start: Chain) -> Iterator[Chain]:
        for item in self._of_kind(goal.kind):
            for chain in self._fetch(item, scene, start):
                for lamp in self._of_kind(goal.lamp):
                    for home in scene.homes.get(lamp, ()):
                        if scene.has(lamp, "istoggled"):
                            yield chain.copy().go(home)
                        elif (lamp,) in self.world.facts.get("toggleable", ()):
                            yield chain.copy().use(lamp, home)

    def _placements(self, goal: Placement, scene: Scene, start: Chain) -> Iterator[Chain]:
        items = self._of_kind(goal.kind)
        for target in self._distinct(self._targets(), scene, start):
            kind = self.receptacle_type[target]
            ready = {item for item in items if target in scene.homes.get(item, ()) and not self._lacking(item, goal, scene)}
            fitting = [item for item in items if item not in ready and (kind, self.item_type[item]) in self.fits]
            for chosen in permutations(self._few(fitting, goal, scene), max(0, goal.count - len(ready))):
                yield from self._deliver(list(chosen), target, goal, scene, start.copy())

    def _lacking(self, item: int, goal: Placement, scene: Scene) -> list[str]:
        return [state for state in goal.states if not scene.has(item, state)]

    def _few(self, items: list[int], goal: Placement, scene: Scene) -> list[int]:
        """At most as many objects with the same home and condition as the goal could need: the others do not shorten a plan."""
        seen: dict[tuple[object, ...], int] = {}
        few = []
        for item in items:
            sort = (tuple(scene.homes.get(item, ())), tuple(self._lacking(item, goal, scene)), item == scene.held)
            seen[sort] = seen.get(sort, 0) + 1
            if seen[sort] <= goal.count:
                few.append(item)
        return few

    def _deliver(self, items: list[int], target: int, goal: Placement, scene: Scene, start: Chain) -> Iterator[Chain]:
        """Chains that fetch, treat and deliver the items one after another."""
        if not items:
            yield start
            return
        if scene.held is not None and scene.held != items[0]:
            return
        for fetched in self._fetch(items[0], scene, start):
            for treated in self._treat(items[0], self._lacking(items[0], goal, scene), scene, fetched):
                if len(items) == 1 and target in scene.homes.get(items[0], ()):
                    yield treated.copy()  # an object that was in two receptacles still counts as being in the other
                after = scene if scene.held is None else scene.put_down(target)
                yield from self._deliver(items[1:], target, goal, after, treated.put(items[0], target))

    def _treat(self, item: int, states: list[str], scene: Scene, start: Chain) -> Iterator[Chain]:
        if not states:
            yield start
            return
        action, trait = TREATMENTS[states[0]]
        if (item,) not in self.world.facts.get(trait, ()):
            return
        for station in self._distinct(self.stations[states[0]], scene, start):
            yield from self._treat(item, states[1:], scene, start.copy().treat(item, action, station))


def _pairs(world: World, predicate: str) -> list[tuple[int, int]]:
    return [(fact[0], fact[1]) for fact in world.facts.get(predicate, ())]
