"""A small reader of PDDL: the language in which a household game states its rules (the domain) and its house (the problem).

It reads what such games use: types, predicates, actions with quantified conditions and conditional effects, facts and a goal. Costs are
ignored, because a player never sees them. Names are not case-sensitive in PDDL and become lower case. Two habits of the reference planner
are kept on purpose, since they decide which commands a player is offered: every type is a kind of `object`, and a type that was never
declared has no members (the published domain writes `?l - location, ?r - receptacle`, where the comma belongs to the type's name).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from turnwise.util.errors import TurnwiseError

ROOT_TYPE = "object"
_TOKEN = re.compile(r"[()]|\?[^\s()?]*|[^\s()?]+")
_COMMENT = re.compile(r";[^\n]*")
_INIT = re.compile(r"\(\s*:init((?:\s*\([^()]*\))*)\s*\)")
_FLAT = re.compile(r"\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class Atom:
    """`predicate(args)`; an argument that begins with `?` is a variable, any other the name of a thing. `=` compares two arguments."""

    predicate: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    variables: tuple[tuple[str, str], ...]
    part: Condition


@dataclass(frozen=True, slots=True)
class Forall:
    variables: tuple[tuple[str, str], ...]
    part: Condition


Condition = Atom | Not | And | Or | Exists | Forall
TRUE = And(())


@dataclass(frozen=True, slots=True)
class Effect:
    """The atom becomes true (`add`) or false, if `condition` held before the action."""

    atom: Atom
    add: bool
    condition: Condition = TRUE


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    parameters: tuple[tuple[str, str], ...]
    precondition: Condition
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Domain:
    """`types` maps each declared type to its direct supertype; the root is `object`."""

    types: dict[str, str]
    actions: tuple[Action, ...]

    def kinds_of(self, name: str) -> frozenset[str]:
        """The types that count as `name`; none if it was never declared."""
        if name == ROOT_TYPE:
            return frozenset({ROOT_TYPE, *self.types})
        if name not in self.types:
            return frozenset()
        found = {name}
        while more := {child for child, parent in self.types.items() if parent in found} - found:
            found |= more
        return frozenset(found)


@dataclass(frozen=True)
class Problem:
    """One house: its things with their types, the facts that hold at the start, and the goal."""

    objects: dict[str, str]
    facts: tuple[tuple[str, ...], ...]
    goal: Condition


def parse_lists(text: str, what: str) -> list[Any]:
    """The nested lists of one parenthesised expression (in lower case, without comments)."""
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise TurnwiseError(f"{what}: a closing parenthesis too many")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if len(stack) != 1:
        raise TurnwiseError(f"{what}: {len(stack) - 1} parentheses are never closed (a truncated file?)")
    if len(stack[0]) != 1 or not isinstance(stack[0][0], list):
        raise TurnwiseError(f"{what}: expected one parenthesised expression")
    only: list[Any] = stack[0][0]
    return only


def parse_domain(text: str) -> Domain:
    what = "PDDL domain"
    sections = _sections(parse_lists(_COMMENT.sub("", text).lower(), what), "domain", what)
    types: dict[str, str] = {}
    actions: list[Action] = []
    for section in sections:
        head = section[0]
        if head == ":types":
            types.update(_typed(section[1:], f"{what}, :types"))
        elif head == ":action":
            actions.append(_action(section[1:], what))
        elif head in (":axiom", ":derived", ":constants"):
            raise TurnwiseError(f"{what}: {head} is not supported by this simulator")
    types.pop(ROOT_TYPE, None)
    return Domain(types, tuple(actions))


def parse_problem(text: str) -> Problem:
    what = "PDDL problem"
    text = _COMMENT.sub("", text).lower()
    # The facts are nine tenths of a problem and never nested: they are read in one pass, the rest as nested lists.
    init = _INIT.search(text)
    rest = f"{text[: init.start()]} {text[init.end() :]}" if init else text
    parts: dict[str, list[Any]] = {":init": [fact.split() for fact in _FLAT.findall(init[1])]} if init else {}
    for section in _sections(parse_lists(rest, what), "problem", what):
        if section[0] in parts:
            raise TurnwiseError(f"{what}: {section[0]} appears twice")
        parts[section[0]] = section[1:]
    for name in (":objects", ":init", ":goal"):
        if name not in parts:
            raise TurnwiseError(f"{what}: it has no {name}")
    objects = dict(_typed(parts[":objects"], f"{what}, :objects"))
    if len(parts[":goal"]) != 1:
        raise TurnwiseError(f"{what}: :goal must hold one condition")
    facts = tuple(dict.fromkeys(_facts(parts[":init"], objects, f"{what}, :init")))
    return Problem(objects, facts, parse_condition(parts[":goal"][0], f"{what}, :goal"))


def _facts(items: list[Any], objects: dict[str, str], what: str) -> Iterator[tuple[str, ...]]:
    for item in items:
        if not isinstance(item, list) or not item:
            raise TurnwiseError(f"{what}: expected a fact in parentheses, found {item!r}")
        if item[0] == "=":
            continue
        for name in item[1:]:
            if not isinstance(name, str):
                raise TurnwiseError(f"{what}: a fact cannot hold another expression: {item!r}")
            if name not in objects:
                raise TurnwiseError(f"{what}: the fact ({' '.join(map(str, item))}) names {name!r}, which :objects does not list")
        yield tuple(item)


def _sections(tree: list[Any], kind: str, what: str) -> list[list[Any]]:
    if len(tree) < 2 or tree[0] != "define" or not isinstance(tree[1], list) or tree[1][:1] != [kind]:
        raise TurnwiseError(f"{what}: it must begin with (define ({kind} …)")
    for section in tree[2:]:
        if not isinstance(section, list) or not section or not isinstance(section[0], str):
            raise TurnwiseError(f"{what}: expected a section such as (:init …), found {str(section)[:60]!r}")
    return tree[2:]


def _typed(words: Sequence[Any], what: str) -> list[tuple[str, str]]:
    """`a b - kind c` becomes [(a, kind), (b, kind), (c, object)]."""
    found: list[tuple[str, str]] = []
    waiting: list[str] = []
    queue = iter(words)
    for word in queue:
        if not isinstance(word, str):
            raise TurnwiseError(f"{what}: expected names, found {word!r}")
        if word != "-":
            waiting.append(word)
            continue
        kind = next(queue, None)
        if not isinstance(kind, str):
            raise TurnwiseError(f"{what}: a type's name must follow the dash after {waiting[-3:]!r}")
        found += [(name, kind) for name in waiting]
        waiting = []
    return found + [(name, ROOT_TYPE) for name in waiting]


def _action(words: list[Any], what: str) -> Action:
    if not words or not isinstance(words[0], str):
        raise TurnwiseError(f"{what}: an action without a name")
    name = words[0]
    what = f"{what}, action {name}"
    fields: dict[str, list[Any]] = {":parameters": [], ":precondition": [], ":effect": []}
    if len(words) % 2 == 0:
        raise TurnwiseError(f"{what}: each of {', '.join(fields)} takes one list")
    for key, value in zip(words[1::2], words[2::2], strict=True):
        if key not in fields or not isinstance(value, list):
            raise TurnwiseError(f"{what}: expected one of {', '.join(fields)} and a list, found {key!r}")
        fields[key] = value
    parameters = tuple(_typed(fields[":parameters"], what))
    precondition, effects = parse_condition(fields[":precondition"], what), tuple(_effects(fields[":effect"], TRUE, what))
    used = _union(free_variables(part) for part in (precondition, *chain.from_iterable((e.atom, e.condition) for e in effects)))
    if loose := sorted(used - {variable for variable, _ in parameters}):
        raise TurnwiseError(f"{what}: it uses variables that nothing declares: {', '.join(loose)}")
    return Action(name, parameters, precondition, effects)


def parse_condition(tree: Any, what: str) -> Condition:
    if not isinstance(tree, list):
        raise TurnwiseError(f"{what}: expected a condition in parentheses, found {tree!r}")
    if not tree:
        return TRUE
    head, rest = tree[0], tree[1:]
    if head == "and":
        return And(tuple(parse_condition(part, what) for part in rest))
    if head == "or":
        return Or(tuple(parse_condition(part, what) for part in rest))
    if head == "not" and len(rest) == 1:
        return Not(parse_condition(rest[0], what))
    if head == "imply" and len(rest) == 2:
        return Or((Not(parse_condition(rest[0], what)), parse_condition(rest[1], what)))
    if head in ("exists", "forall") and len(rest) == 2 and isinstance(rest[0], list):
        quantifier = Exists if head == "exists" else Forall
        return quantifier(tuple(_typed(rest[0], what)), parse_condition(rest[1], what))
    if all(isinstance(word, str) for word in tree) and head not in ("not", "imply", "exists", "forall"):
        if head == "=" and len(rest) != 2:
            raise TurnwiseError(f"{what}: = compares two things, found {rest!r}")
        return Atom(head, tuple(rest))
    raise TurnwiseError(f"{what}: cannot read the condition {str(tree)[:80]}")


def _effects(tree: list[Any], condition: Condition, what: str) -> Iterator[Effect]:
    if not tree or tree[0] == "increase":
        return
    head, rest = tree[0], tree[1:]
    if head == "and":
        for part in rest:
            yield from _effects(part, condition, what)
    elif head == "when" and len(rest) == 2:
        yield from _effects(rest[1], And((condition, parse_condition(rest[0], what))), what)
    elif head == "not" and len(rest) == 1 and isinstance(inner := parse_condition(rest[0], what), Atom):
        yield Effect(inner, False, condition)
    elif isinstance(head, str) and head not in ("forall", "not", "when") and all(isinstance(word, str) for word in rest):
        yield Effect(Atom(head, tuple(rest)), True, condition)
    else:
        raise TurnwiseError(f"{what}: cannot read the effect {str(tree)[:80]}")


def atoms_of(condition: Condition) -> Iterator[Atom]:
    """Every atom of a condition, except comparisons."""
    if isinstance(condition, Atom):
        if condition.predicate != "=":
            yield condition
    elif isinstance(condition, And | Or):
        for part in condition.parts:
            yield from atoms_of(part)
    else:
        yield from atoms_of(condition.part)


def free_variables(condition: Condition) -> frozenset[str]:
    if isinstance(condition, Atom):
        return frozenset(arg for arg in condition.args if arg.startswith("?"))
    if isinstance(condition, And | Or):
        return _union(free_variables(part) for part in condition.parts)
    if isinstance(condition, Not):
        return free_variables(condition.part)
    return free_variables(condition.part) - {name for name, _ in condition.variables}


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


def positive(condition: Condition, *, negate: bool = False) -> Condition:
    """The same condition with every `not` pushed down to the atoms and `forall` only under a `not`."""
    if isinstance(condition, Atom):
        return Not(condition) if negate else condition
    if isinstance(condition, Not):
        return positive(condition.part, negate=not negate)
    if isinstance(condition, And | Or):
        junction = And if isinstance(condition, And) != negate else Or
        return junction(tuple(positive(part, negate=negate) for part in condition.parts))
    if isinstance(condition, Exists) != negate:
        return Exists(condition.variables, positive(condition.part, negate=negate))
    return Not(Exists(condition.variables, positive(condition.part, negate=not negate)))
