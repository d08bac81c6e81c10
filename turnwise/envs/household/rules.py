"""The rules of a household, compiled: a PDDL domain defines what can be done, a grammar defines how commands and answers are worded.

Both come with a game (or from `house.py` for generated houses) and are compiled once for all games that share them. Only what can be
noticed is kept: predicates that no condition, no goal and no text reads are dropped, so two states without a noticeable difference are
the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from turnwise.envs.household.codegen import TYPE_PREFIX, CodeGenerator, Writer
from turnwise.envs.household.grammar import Each, Grammar, Literal, Query, Text, Value, parse_grammar
from turnwise.envs.household.pddl import (
    TRUE,
    Action,
    And,
    Atom,
    Condition,
    Domain,
    Effect,
    Exists,
    Forall,
    Not,
    Or,
    atoms_of,
    free_variables,
    parse_domain,
)
from turnwise.envs.household.wording import Context, Wording, Wordings, value_source
from turnwise.util.errors import TurnwiseError

NEGATED = "not_"  # texts may ask `not_p(…)`: something made p false and nothing has made it true since


@dataclass(frozen=True)
class CompiledAction:
    """`list_commands(X, C, W, out)` writes each command that fits the state into `out`; `command(X, C, W, things)` words one; `changes(X,
    C, things)` gives what the action makes false and true; `answer` words it afterwards."""

    name: str
    parameters: tuple[str, ...]
    command: Callable[..., str]
    list_commands: Callable[..., None]
    changes: Callable[..., tuple[list[tuple[str, tuple[int, ...]]], list[tuple[str, tuple[int, ...]]]]]
    answer: Wording


class Rules:
    """A domain and a grammar, compiled. `sample` holds the facts of a house by predicate, to estimate how often each holds."""

    def __init__(self, domain: Domain, grammar: Grammar, live: frozenset[str], sample: Mapping[str, Iterable[tuple[Any, ...]]]):
        self.domain = domain
        self.fluents = changing(domain)
        self.live = live
        self.history = frozenset(name for name in live if name.startswith(NEGATED) and name[len(NEGATED) :] in self.fluents)
        self.generator = CodeGenerator(domain, _estimator(sample))
        self.wordings = Wordings(grammar, self.generator)
        self.changing = sorted((self.fluents & live) | self.history)
        arities = {effect.atom.predicate: len(effect.atom.args) for action in domain.actions for effect in action.effects}
        for name in self.changing:
            arity = arities[name if name in arities else name[len(NEGATED) :]]
            self.generator.index(name, arity, tuple(range(arity)))
        self._check_texts(domain)
        self.actions = tuple(self._action(number, action, grammar) for number, action in enumerate(domain.actions))
        self.numbers = {action.name: number for number, action in enumerate(self.actions)}
        self.intro = self.wordings.symbol("intro", ())
        self._goals: dict[Condition, Callable[..., bool]] = {}

    def _check_texts(self, domain: Domain) -> None:
        """Reject the two constructs whose wording this simulator cannot guarantee."""
        for action in domain.actions:
            given = {part for part in _conjuncts(action.precondition) if isinstance(part, Atom)}
            for effect in action.effects:
                name = effect.atom.predicate
                if effect.condition != TRUE and (name in self._text_reads or NEGATED + name in self._text_reads):
                    raise TurnwiseError(f"grammar: it asks about {name}, which {action.name} changes only under a condition")
                if NEGATED + name in self._text_reads and not effect.add and effect.atom not in given:
                    raise TurnwiseError(f"grammar: it asks {NEGATED}{name}, but {action.name} may delete a {name} that never was")

    @property
    def _text_reads(self) -> frozenset[str]:
        return text_reads(self.wordings.grammar)

    def _action(self, number: int, action: Action, grammar: Grammar) -> CompiledAction:
        if action.name not in grammar.actions:
            raise TurnwiseError(f"grammar: no action {action.name}, which the domain has")
        template, feedback = grammar.actions[action.name]
        context: Context = tuple((name.removeprefix("?"), kind) for name, kind in action.parameters)
        given = {part for part in _conjuncts(action.precondition) if isinstance(part, Atom)}
        writer = Writer()
        writer.add(f"return {self._command(template, context, given, [f'things[{i}]' for i in range(len(context))])}")
        return CompiledAction(
            action.name,
            tuple(name for name, _ in action.parameters),
            self.generator.function("W, things", writer),
            self._lister(number, action, template, context),
            self._changer(action),
            self.wordings.text(feedback, context),
        )

    def _lister(self, number: int, action: Action, template: Text, context: Context) -> Callable[..., None]:
        given = {part for part in _conjuncts(action.precondition) if isinstance(part, Atom)}

        def emit(writer: Writer, bound: Mapping[str, str]) -> None:
            places = [bound[name] for name, _ in action.parameters]
            if nothing := _without_effect(action, given, bound):
                writer.open(f"if not ({nothing}):")
            things = f"({''.join(place + ', ' for place in places)})"
            writer.add(f"out.setdefault({self._command(template, context, given, places)}, ({number}, {things}))")

        writer = Writer()
        self.generator.solutions(writer, [action.precondition], dict(action.parameters), {}, emit)
        writer.depth = 1
        writer.add("return")
        return self.generator.function("W, out", writer)

    def _command(self, template: Text, context: Context, given: set[Atom], places: list[str]) -> str:
        """The command's text as Python source."""
        sources: list[str] = []
        for piece in template:
            if isinstance(piece, Literal):
                sources.append(repr(piece.text))
            elif isinstance(piece, Each) and isinstance(piece.body, Value) and _certain(piece.query, context, given):
                sources.append(value_source(piece.body.expression, places, context))
            else:
                name = f"worded{len(self.generator.namespace)}"
                self.generator.namespace[name] = self.wordings.text((piece,), context)
                sources.append(f"{name}(W, X, ({''.join(place + ', ' for place in places)}))")
        return " + ".join(sources) or "''"

    def _changer(self, action: Action) -> Callable[..., Any]:
        bound = {name: f"v{i}" for i, (name, _) in enumerate(action.parameters)}
        writer = Writer()
        if bound:
            writer.add(f"{', '.join(bound.values())}, = things")
        writer.add("gone, new = [], []")
        for name, atom, add, condition in self._updates(action.effects):
            things = "".join(self.generator.term(argument, bound) + ", " for argument in atom.args)
            line = f"{'new' if add else 'gone'}.append(({name!r}, ({things})))"
            test = "" if condition == TRUE else f"if {self.generator.expression(condition, bound)}: "
            writer.add(test + line)
        writer.add("return gone, new")
        return self.generator.function("things", writer)

    def _updates(self, effects: Iterable[Effect]) -> Iterable[tuple[str, Atom, bool, Condition]]:
        for effect in effects:
            name = effect.atom.predicate
            if name in self.live:
                yield name, effect.atom, effect.add, effect.condition
            if NEGATED + name in self.history:
                yield NEGATED + name, effect.atom, not effect.add, TRUE

    def goal(self, goal: Condition) -> tuple[Callable[..., bool], list[str]]:
        """A function (X, C, *things) that returns whether the goal holds, and the names of those things: goals that differ only in names
        share it."""
        names: list[str] = []
        shape = _abstract(goal, names)
        if shape not in self._goals:
            writer = Writer()
            bound = {f"?${i}": f"g{i}" for i in range(len(names))}
            self.generator.solutions(writer, [shape], {}, bound, lambda inner, _: inner.add("return True"))
            writer.depth = 1
            writer.add("return False")
            self._goals[shape] = self.generator.function(", ".join(bound.values()), writer)
        return self._goals[shape], names


def changing(domain: Domain) -> frozenset[str]:
    """The predicates that some action changes."""
    return frozenset(effect.atom.predicate for action in domain.actions for effect in action.effects)


def text_reads(grammar: Grammar) -> frozenset[str]:
    """The predicates that some text asks about."""
    return frozenset(_reads(chain.from_iterable(grammar.actions.values()), grammar))


def _reads(texts: Iterable[Text], grammar: Grammar) -> Iterable[str]:
    for text in texts:
        for piece in text:
            if isinstance(piece, Each) and piece.query:
                yield from (name for name, _ in piece.query.predicates)
    for productions in grammar.productions.values():
        for production in productions:
            if production.condition:
                yield from (name for name, _ in production.condition.predicates)
            for piece in production.text:
                if isinstance(piece, Each) and piece.query:
                    yield from (name for name, _ in piece.query.predicates)


def noticeable(domain: Domain, grammar: Grammar, goals: Iterable[str]) -> frozenset[str]:
    """The predicates that anything reads: a precondition, a text, a goal, or the condition of an effect on one that is read."""
    read = set(goals) | set(text_reads(grammar))
    read |= {name[len(NEGATED) :] for name in read if name.startswith(NEGATED)}
    for action in domain.actions:
        read |= {atom.predicate for atom in atoms_of(action.precondition)}
    while True:
        more = {
            atom.predicate
            for action in domain.actions
            for effect in action.effects
            if effect.atom.predicate in read
            for atom in atoms_of(effect.condition)
        }
        if more <= read:
            return frozenset(read)
        read |= more


def _conjuncts(condition: Condition) -> Iterable[Condition]:
    if isinstance(condition, And):
        for part in condition.parts:
            yield from _conjuncts(part)
    else:
        yield condition


def _certain(query: Query | None, context: Context, given: set[Atom]) -> bool:
    """Whether a query over an action's own parameters only repeats the action's precondition: it then has exactly one answer."""
    if query is None:
        return True
    return all(
        all(placeholder in context for placeholder in placeholders)
        and Atom(name, tuple(f"?{placeholder[0]}" for placeholder in placeholders)) in given
        for name, placeholders in query.predicates
    )


def _without_effect(action: Action, given: set[Atom], bound: Mapping[str, str]) -> str:
    """Python source for: this action would change nothing, whatever the state. The reference planner offers no such action (going to the
    current location). Empty if it always changes something."""
    denied = {part.part for part in _conjuncts(action.precondition) if isinstance(part, Not) and isinstance(part.part, Atom)}
    added = {effect.atom for effect in action.effects if effect.add and effect.condition == TRUE}
    tests = []
    for effect in action.effects:
        rivals = given if effect.add else denied | added
        same = [_equal(effect.atom, rival, bound) for rival in rivals if rival.predicate == effect.atom.predicate]
        if effect.condition != TRUE or not same:
            return ""
        tests.append(f"({' or '.join(sorted(same))})")
    return " and ".join(tests) or "True"


def _equal(left: Atom, right: Atom, bound: Mapping[str, str]) -> str:
    tests = []
    for one, other in zip(left.args, right.args, strict=True):
        if one == other:
            continue
        if not (one.startswith("?") and other.startswith("?")):
            raise TurnwiseError(f"PDDL: {left.predicate} with a constant both required and changed is not supported")
        tests.append(f"{bound[one]} == {bound[other]}")
    return " and ".join(tests) or "True"


def _abstract(condition: Condition, names: list[str]) -> Condition:
    """The condition with every constant replaced by a numbered variable; the constants go into `names`."""
    if isinstance(condition, Atom):
        words = []
        for word in condition.args:
            if not word.startswith("?"):
                names.append(word)
                word = f"?${len(names) - 1}"
            words.append(word)
        return Atom(condition.predicate, tuple(words))
    if isinstance(condition, Not):
        return Not(_abstract(condition.part, names))
    if isinstance(condition, And | Or):
        return type(condition)(tuple(_abstract(part, names) for part in condition.parts))
    assert isinstance(condition, Exists | Forall)
    return type(condition)(condition.variables, _abstract(condition.part, names))


def _estimator(sample: Mapping[str, Iterable[tuple[Any, ...]]]) -> Callable[[str, tuple[int, ...]], float]:
    facts = {name: list(given) for name, given in sample.items()}

    def expected(predicate: str, key: tuple[int, ...]) -> float:
        if predicate.startswith(TYPE_PREFIX):
            return 100.0
        known = facts.get(predicate)
        if not known:
            return 0.5
        return len(known) / max(1, len({tuple(fact[i] for i in key if i < len(fact)) for fact in known}))

    return expected


_domain = lru_cache(maxsize=64)(parse_domain)
_grammar = lru_cache(maxsize=64)(parse_grammar)
_compiled: dict[tuple[str, str, frozenset[str]], Rules] = {}


@lru_cache(maxsize=64)
def _unread(domain_text: str, grammar_text: str) -> frozenset[str]:
    """The predicates that actions change and that only a goal could read."""
    domain = _domain(domain_text)
    return changing(domain) - noticeable(domain, _grammar(grammar_text), ())


def rules_for(domain_text: str, grammar_text: str, goal: Condition, sample: Mapping[str, Iterable[tuple[Any, ...]]]) -> Rules:
    """The compiled rules for a domain, a grammar and what the goal reads; made once for all games that share them."""
    if loose := free_variables(goal):
        raise TurnwiseError(f"PDDL problem: the goal uses variables that nothing declares: {', '.join(sorted(loose))}")
    extra = frozenset(atom.predicate for atom in atoms_of(goal)) & _unread(domain_text, grammar_text)
    key = (domain_text, grammar_text, extra)
    if key not in _compiled:
        if len(_compiled) >= 64:
            _compiled.clear()
        domain, grammar = _domain(domain_text), _grammar(grammar_text)
        _compiled[key] = Rules(domain, grammar, noticeable(domain, grammar, extra), sample)
    return _compiled[key]
