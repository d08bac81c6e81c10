"""A house with its rules, and its states.

`World` is what never changes: things, names, rules, the facts at the start. It is shared by everything that plays in it. `State` is what
changes; `Play` is one game being played: commands in, answers out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import Any

from turnwise.envs.household.codegen import TYPE_PREFIX
from turnwise.envs.household.grammar import split_task
from turnwise.envs.household.pddl import ROOT_TYPE, Problem, parse_problem
from turnwise.envs.household.relations import Fact
from turnwise.envs.household.rules import rules_for

NOTHING = "Nothing happens."
Command = tuple[int, Fact]  # the action's number and its things


class World:
    """Everything about a house that no action changes.

    `names` gives each thing's name; by default as in ALFWorld. `task` is the task's sentence if `grammar` has `TASK_MARK` instead of it;
    by default it is taken out of the grammar, so that games share what is compiled.
    """

    def __init__(self, problem: Problem, domain: str, grammar: str, *, names: Mapping[str, str] | None = None, task: str | None = None):
        template, self.task = split_task(grammar) if task is None else (grammar, task)
        by_predicate: dict[str, list[tuple[str, ...]]] = {}
        for fact in problem.facts:
            by_predicate.setdefault(fact[0], []).append(fact[1:])
        self.problem = problem
        self.rules = rules = rules_for(domain, template, problem.goal, by_predicate)
        ranks = {kind: rank for rank, kind in enumerate([ROOT_TYPE, *rules.domain.types])}
        # Numbering things by type and name makes the order of numbers the order in which texts list them.
        self.ids = sorted(problem.objects, key=lambda thing: (ranks.get(problem.objects[thing], len(ranks)), thing))
        self.numbers = {thing: number for number, thing in enumerate(self.ids)}
        self.types = [problem.objects[thing] for thing in self.ids]
        if names is None:
            names = alfworld_names({thing for fact in problem.facts for thing in fact[1:]})
        self.names = [names.get(thing, thing) for thing in self.ids]
        self.facts: dict[str, list[Fact]] = {
            name: [tuple(self.numbers[thing] for thing in fact) for fact in facts] for name, facts in by_predicate.items()
        }
        self.goal, goal_names = rules.goal(problem.goal)
        self.goal_things = tuple(self.numbers.get(name, -1) for name in goal_names)
        self.indexes = list(rules.generator.indexes)
        self.constants = tuple(self.numbers.get(name, -1) for name in rules.generator.constants)
        self.start = [index.build(self._facts_of(index.predicate), self.types) for index in self.indexes]
        changing = set(rules.changing)
        self.moving = [number for number, index in enumerate(self.indexes) if index.predicate in changing]
        self.updates: dict[str, list[tuple[int, Any]]] = {name: [] for name in changing}
        for number in self.moving:
            self.updates[self.indexes[number].predicate].append((number, self.indexes[number]))
        self._marks: dict[tuple[str, Fact], int] = {}

    @classmethod
    def from_text(cls, problem: str, domain: str, grammar: str) -> World:
        return cls(parse_problem(problem), domain, grammar)

    def _facts_of(self, predicate: str) -> Iterable[Fact]:
        if not predicate.startswith(TYPE_PREFIX):
            return self.facts.get(predicate, ())
        kinds = self.rules.domain.kinds_of(predicate[len(TYPE_PREFIX) :])
        return [(number,) for number, kind in enumerate(self.types) if kind in kinds]

    @cached_property
    def beginning(self) -> tuple[str, dict[str, Command], tuple[str, ...], bool]:
        """The first answer of every game in this house, its commands and actions, and whether it is won."""
        state = State(self)
        play = Play(self, state, self.rules.intro(self, state.containers, ()))
        return play.text, play.commands, play.actions, play.won

    @cached_property
    def base(self) -> int:
        """128 bits of what never changes: the things, the goal, and the facts at the start."""
        text = repr((sorted(self.problem.objects.items()), sorted(self.problem.facts), self.problem.goal, self.task))
        return int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")

    def known_fact(self, things: Iterable[int]) -> Fact:
        """Things by their numbers, all of this house."""
        fact = tuple(things)
        if not all(type(thing) is int and 0 <= thing < len(self.ids) for thing in fact):
            raise ValueError(f"{fact} are not things of this house")
        return fact

    def mark(self, predicate: str, fact: Fact) -> int:
        """128 bits of one fact; a state's key combines those of its facts."""
        known = self._marks.get((predicate, fact))
        if known is None:
            text = "\0".join((predicate, *(self.ids[thing] for thing in fact)))
            known = self._marks[predicate, fact] = int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")
        return known


class State:
    """What holds now. `containers` are what the compiled rules read."""

    __slots__ = ("containers", "world")

    def __init__(self, world: World, containers: list[Any] | None = None):
        self.world = world
        source = world.start if containers is None else containers
        self.containers = list(source)
        for number in world.moving:
            self.containers[number] = world.indexes[number].copy(source[number])

    def copy(self) -> State:
        return State(self.world, self.containers)

    def facts(self, predicate: str) -> Iterable[Fact]:
        """The facts of one predicate that hold now."""
        updates = self.world.updates.get(predicate)
        if not updates:
            return self.world.facts.get(predicate, ())
        number, index = updates[0]  # every changing predicate's first index holds its whole facts
        return [(fact,) for fact in self.containers[number]] if index.arity == 1 else self.containers[number]

    def apply(self, command: Command) -> None:
        action, things = command
        world = self.world
        gone, new = world.rules.actions[action].changes(self.containers, world.constants, things)
        for change in gone:
            if change not in new:
                for number, index in world.updates[change[0]]:
                    index.drop(self.containers[number], change[1])
        for name, fact in new:
            for number, index in world.updates[name]:
                index.put(self.containers[number], fact, world.types)

    def commands(self) -> dict[str, Command]:
        """Every command that does something now, in no particular order."""
        found: dict[str, Command] = {}
        world = self.world
        for action in world.rules.actions:
            action.list_commands(self.containers, world.constants, world, found)
        return found

    def changes(self) -> dict[str, list[list[Fact]]]:
        """What differs from the start: for each predicate the facts that no longer hold, and the new ones."""
        found: dict[str, list[list[Fact]]] = {}
        for predicate in self.world.rules.changing:
            before, now = set(self.world.facts.get(predicate, ())), set(self.facts(predicate))
            if before != now:
                found[predicate] = [sorted(before - now), sorted(now - before)]
        return found

    @classmethod
    def changed(cls, world: World, changes: Mapping[str, Any]) -> State:
        """The state that differs from the start by what `changes` gave."""
        state = cls(world)
        for predicate, (gone, new) in changes.items():
            for number, index in world.updates[predicate]:
                for fact in gone:
                    index.drop(state.containers[number], world.known_fact(fact))
                for fact in new:
                    index.put(state.containers[number], world.known_fact(fact), world.types)
        return state

    def won(self) -> bool:
        return self.world.goal(self.containers, self.world.constants, *self.world.goal_things)

    def key(self) -> bytes:
        """16 bytes that are equal for equal states of the same game (the same noticeable facts), whatever the path to them."""
        total = self.world.base
        for predicate in self.world.rules.changing:
            for fact in self.facts(predicate):
                total ^= self.world.mark(predicate, fact)
        return total.to_bytes(16, "big")


class Play:
    """One game being played. `commands` maps the commands that are possible now to what they do; `actions` is the same in the oracle's
    order."""

    __slots__ = ("actions", "commands", "state", "text", "won", "world")

    def __init__(self, world: World, state: State | None = None, text: str | None = None):
        """From the start, or from a later `state`, of which `text` was the last answer."""
        self.world = world
        self.state = state or State(world)
        if state is None and text is None:
            self.text, self.commands, self.actions, self.won = world.beginning
            return
        self.text = world.rules.intro(world, self.state.containers, ()) if text is None else text
        self._look_around()

    def _look_around(self) -> None:
        self.commands = self.state.commands()
        self.actions = tuple(sorted(self.commands))
        self.won = self.state.won()

    def step(self, command: str) -> str:
        chosen = self.commands.get(command.strip())
        if chosen is None:
            self.text = NOTHING
            return NOTHING
        self.state.apply(chosen)
        self.text = self.world.rules.actions[chosen[0]].answer(self.world, self.state.containers, chosen[1])
        self._look_around()
        return self.text


def alfworld_names(ids: Iterable[str]) -> dict[str, str]:
    """ALFWorld's names: `cabinet_bar__minus_01…` becomes `cabinet 3`, numbered downwards in the order of the ids."""
    ordered = sorted(ids)
    kinds = {thing: _kind(thing) for thing in ordered}
    left = Counter(kind for kind in kinds.values() if kind is not None)
    names: dict[str, str] = {}
    for thing in ordered:
        kind = kinds[thing]
        if kind is None:
            names[thing] = _plain(thing) + " "  # the trailing space is the reference's: such things are never meant to be named
        else:
            names[thing] = f"{kind} {left[kind]}"
            left[kind] -= 1
    return names


def _plain(thing: str) -> str:
    for code, sign in (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
        thing = thing.replace(code, sign)
    return thing


def _kind(thing: str) -> str | None:
    kind, bar, _ = _plain(thing).partition("|")
    if not bar:
        return None
    return kind + "basin" if "basin" in thing else kind
