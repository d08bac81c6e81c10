"""Compiles a grammar's texts into functions that word an answer for a state.

Which placeholders are bound at every point of a text is known in advance (an action's parameters, then what each query adds), so each
part is compiled once for the context in which it is used. A query lists its answers in the order of the things' names and never gives two
placeholders the same thing: what a player reads depends on both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.envs.household.codegen import CodeGenerator, Writer
from turnwise.envs.household.grammar import TASK_MARK, Each, Expression, Grammar, Literal, Placeholder, Query, Symbol, Text, Value
from turnwise.envs.household.pddl import Atom
from turnwise.envs.household.relations import Fact
from turnwise.util.errors import TurnwiseError

if TYPE_CHECKING:
    from turnwise.envs.household.world import World

Context = tuple[Placeholder, ...]
Wording = Callable[["World", Any, Fact], str]  # the world, the indexes' containers, the things bound so far
ARTICLES = {"definite": "the", "indefinite": "a"}


class Wordings:
    """The compiled texts of one grammar."""

    def __init__(self, grammar: Grammar, generator: CodeGenerator):
        self.grammar = grammar
        self.generator = generator
        self._symbols: dict[tuple[str, Context], list[Wording]] = {}

    def text(self, text: Text, context: Context) -> Wording:
        pieces = [self._piece(piece, context) for piece in text]
        if len(pieces) == 1:
            return pieces[0]
        return lambda world, containers, things: "".join([piece(world, containers, things) for piece in pieces])

    def _piece(self, piece: Literal | Symbol | Each, context: Context) -> Wording:
        if isinstance(piece, Literal):
            if TASK_MARK in piece.text:
                return lambda world, containers, things: piece.text.replace(TASK_MARK, world.task)
            return lambda world, containers, things: piece.text
        if isinstance(piece, Symbol):
            return self.symbol(piece.name, context)
        return self._each(piece, context)

    def symbol(self, name: str, context: Context) -> Wording:
        """The first production of `name` whose condition holds."""
        holder = self._symbols.get((name, context))
        if holder is None:
            holder = self._symbols[name, context] = []  # filled below: a symbol may mention itself
            holder.append(self._choice(name, context))
        if holder:
            return holder[0]
        return lambda world, containers, things: holder[0](world, containers, things)

    def _choice(self, name: str, context: Context) -> Wording:
        productions = self.grammar.productions.get(name)
        if not productions:
            raise TurnwiseError(f"grammar: no production for the symbol #{name}#")
        choices: list[tuple[Callable[..., bool], Wording]] = []
        for production in productions:
            wording = self.text(production.text, context)
            if production.condition is None:
                return _first(choices, wording)
            choices.append((self._query(production.condition, context, exists=True)[0], wording))
        raise TurnwiseError(f"grammar: the last production of #{name}# has a condition; where none holds there would be no text")

    def _each(self, piece: Each, context: Context) -> Wording:
        if piece.query is None:
            return self._body(piece.body, context)
        answers, inner = self._query(piece.query, context, exists=False)
        body = self._body(piece.body, inner)
        if not piece.listed:
            return lambda world, containers, things: "".join(
                [body(world, containers, answer) for answer in answers(containers, world.constants, things)]
            )
        empty = self.symbol("list_empty", context)
        comma = self.symbol("list_separator", context)
        last = self.symbol("list_last_separator", context)

        def listed(world: World, containers: Any, things: Fact) -> str:
            words = [body(world, containers, answer) for answer in answers(containers, world.constants, things)]
            if not words:
                return empty(world, containers, things)
            if len(words) == 1:
                return words[0]
            return comma(world, containers, things).join(words[:-1]) + last(world, containers, things) + words[-1]

        return listed

    def _body(self, body: Symbol | Value, context: Context) -> Wording:
        return self.symbol(body.name, context) if isinstance(body, Symbol) else self._value(body.expression, context)

    def _value(self, expression: Expression, context: Context) -> Wording:
        writer = Writer()
        writer.add(f"return {value_source(expression, [f'b[{i}]' for i in range(len(context))], context)}")
        function = self.generator.function("W, b", writer)
        return lambda world, containers, things: function(containers, (), world, things)

    def _query(self, query: Query, context: Context, *, exists: bool) -> tuple[Callable[..., Any], Context]:
        """A function (containers, constants, things) -> the answers, each the given things and the new ones; and the new context."""
        bound = {_variable(placeholder): f"b{i}" for i, placeholder in enumerate(context)}
        order = list(context)
        writer = Writer()
        if bound:
            writer.add(f"{', '.join(bound.values())}, = b")
        if not exists:
            writer.add("answers = []")
        for predicate, placeholders in query.predicates:
            for placeholder in placeholders:
                if not self.generator.domain.kinds_of(placeholder[1]):
                    raise TurnwiseError(f"grammar: the query on {predicate} names the type {placeholder[1]!r}, which the domain lacks")
            self._predicate(writer, predicate, placeholders, bound, order, exists=exists)
        things = f"({''.join(bound[_variable(placeholder)] + ', ' for placeholder in order)})"
        writer.add("return True" if exists else f"answers.append({things})")
        writer.depth = 1
        writer.add("return False" if exists else "return answers")
        return self.generator.function("b", writer), tuple(order)

    def _predicate(
        self,
        writer: Writer,
        predicate: str,
        placeholders: Sequence[Placeholder],
        bound: dict[str, str],
        order: list[Placeholder],
        *,
        exists: bool,
    ) -> None:
        new = [placeholder for placeholder in dict.fromkeys(placeholders) if _variable(placeholder) not in bound]
        atom = Atom(predicate, tuple(_variable(placeholder) for placeholder in placeholders))
        types = {_variable(placeholder): placeholder[1] for placeholder in new}
        self.generator.bind(writer, atom, types, bound, ordered=not exists)
        for placeholder in new:
            kinds = self.generator.domain.kinds_of(placeholder[1])
            rivals = [other for other in order if kinds & self.generator.domain.kinds_of(other[1])]
            for rival in rivals:
                writer.open(f"if {bound[_variable(placeholder)]} != {bound[_variable(rival)]}:")
            order.append(placeholder)


def _variable(placeholder: Placeholder) -> str:
    return f"?{placeholder[0]}:{placeholder[1]}"


def _first(choices: list[tuple[Callable[..., bool], Wording]], otherwise: Wording) -> Wording:
    if not choices:
        return otherwise

    def choose(world: World, containers: Any, things: Fact) -> str:
        for holds, wording in choices:
            if holds(containers, world.constants, things):
                return wording(world, containers, things)
        return otherwise(world, containers, things)

    return choose


def value_source(expression: Expression, places: Sequence[str], context: Context) -> str:
    """An expression over the context's things as Python source; `places` are the sources of the things themselves."""
    if expression.operator == "text":
        return repr(expression.name)
    if expression.operator != "of":
        parts = [value_source(part, places, context) for part in expression.parts]
        return f"({f' {expression.operator} '.join(parts)})"
    places_by_name = {name: place for place, (name, _) in zip(places, context, strict=True)}  # of equal names the last counts
    if expression.name not in places_by_name:
        raise TurnwiseError(f"grammar: {expression.name!r} is not among the things known there: {', '.join(places_by_name) or 'none'}")
    if expression.attribute in ARTICLES:
        return repr(ARTICLES[expression.attribute])
    return f"W.{expression.attribute}s[{places_by_name[expression.name]}]"
