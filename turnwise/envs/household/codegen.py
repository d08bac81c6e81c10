"""Turns conditions into Python: a condition with variables becomes nested loops over indexes.

A household's rules are evaluated tens of thousands of times per second, so they are compiled rather than interpreted: each action becomes
one function that writes every command that fits the current state, each goal and each query of the grammar another. Loops are ordered by
how few answers they are expected to give (estimated on the first house that is seen), unless a query fixes the order because the player
reads its answers in it. Only numbers and quoted literals of a game's file reach the generated source: names become indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from turnwise.envs.household.pddl import ROOT_TYPE, And, Atom, Condition, Domain, Exists, Not, Or, free_variables, positive
from turnwise.envs.household.relations import FactIndex
from turnwise.util.errors import TurnwiseError

TYPE_PREFIX = "@type "  # the unary predicate that holds for the things of a type
EMPTY = "()"


@dataclass
class Writer:
    """Lines of one function with their indentation."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def open(self, line: str) -> None:
        self.add(line)
        self.depth += 1


Emit = Callable[[Writer, Mapping[str, str]], None]


class CodeGenerator:
    """Collects indexes, constants and functions. `sizes` estimates the answers of a lookup: (predicate, key positions) -> number."""

    def __init__(self, domain: Domain, sizes: Callable[[str, tuple[int, ...]], float]):
        self.domain = domain
        self.sizes = sizes
        self.indexes: list[FactIndex] = []
        self.constants: list[str] = []
        self._index_numbers: dict[FactIndex, int] = {}
        self._functions = 0
        self.namespace: dict[str, Any] = {"__builtins__": {"sorted": sorted}}

    def index(self, predicate: str, arity: int, key: tuple[int, ...], kinds: Sequence[str] | None = None) -> int:
        narrowed = tuple(None if kind == ROOT_TYPE else self.domain.kinds_of(kind) for kind in kinds) if kinds else (None,) * arity
        index = FactIndex(predicate, arity, key, narrowed)
        if index not in self._index_numbers:
            self._index_numbers[index] = len(self.indexes)
            self.indexes.append(index)
        return self._index_numbers[index]

    def constant(self, name: str) -> str:
        if name not in self.constants:
            self.constants.append(name)
        return f"C[{self.constants.index(name)}]"

    def function(self, parameters: str, writer: Writer) -> Callable[..., Any]:
        """Compile the lines into a function (X: the indexes' containers, C: the constants, then `parameters`)."""
        name = f"f{self._functions}"
        self._functions += 1
        source = f"def {name}(X, C{', ' + parameters if parameters else ''}):\n" + "\n".join(writer.lines)
        exec(compile(source, f"<household rules {name}>", "exec"), self.namespace)
        function: Callable[..., Any] = self.namespace[name]
        function.__doc__ = source
        return function

    def term(self, argument: str, bound: Mapping[str, str]) -> str:
        return bound[argument] if argument.startswith("?") else self.constant(argument)

    def holds(self, atom: Atom, bound: Mapping[str, str]) -> tuple[str, str]:
        """Key and container of a test whether an atom without free variables is true."""
        terms = [self.term(argument, bound) for argument in atom.args]
        index = self.index(atom.predicate, len(terms), tuple(range(len(terms))))
        return (terms[0] if len(terms) == 1 else f"({', '.join(terms)})"), f"X[{index}]"

    def expression(self, condition: Condition, bound: Mapping[str, str]) -> str:
        """A condition whose variables are all bound, as a Python expression."""
        if isinstance(condition, Atom) or (isinstance(condition, Not) and isinstance(condition.part, Atom)):
            atom, word = (condition, "") if isinstance(condition, Atom) else (condition.part, "not ")
            assert isinstance(atom, Atom)
            if atom.predicate == "=":
                left, right = (self.term(argument, bound) for argument in atom.args)
                return f"{left} {'!=' if word else '=='} {right}"
            key, container = self.holds(atom, bound)
            return f"{key} {word}in {container}"
        if isinstance(condition, Not):
            return f"not ({self.expression(condition.part, bound)})"
        if isinstance(condition, And | Or):
            word = " and " if isinstance(condition, And) else " or "
            parts = [self.expression(part, bound) for part in condition.parts]
            return f"({word.join(parts)})" if parts else str(isinstance(condition, And))
        return self._helper_call(condition, bound)

    def _helper_call(self, condition: Condition, bound: Mapping[str, str]) -> str:
        given = sorted(free_variables(condition))
        names = {variable: f"p{i}" for i, variable in enumerate(given)}
        writer = Writer()
        self.solutions(writer, [condition], {}, names, lambda inner, _: inner.add("return True"))
        writer.depth = 1
        writer.add("return False")
        function = self.function(", ".join(names.values()), writer)
        arguments = "".join(f", {bound[variable]}" for variable in given)
        return f"{function.__name__}(X, C{arguments})"

    def solutions(
        self,
        writer: Writer,
        parts: Iterable[Condition],
        variables: Mapping[str, str],
        bound: Mapping[str, str],
        emit: Emit,
    ) -> None:
        """Loops over all bindings of `variables` (name -> type) for which all parts hold; `emit` writes the innermost lines."""
        for branch, types in _branches([positive(part) for part in parts], dict(variables)):
            if all(self.domain.kinds_of(kind) for kind in types.values()):
                depth = writer.depth
                self._branch(writer, branch, types, dict(bound), emit)
                writer.depth = depth

    def _branch(self, writer: Writer, parts: list[Condition], types: dict[str, str], bound: dict[str, str], emit: Emit) -> None:
        waiting = list(parts)
        while True:
            ready = [part for part in waiting if free_variables(part) <= bound.keys()]
            for part in ready:
                writer.open(f"if {self.expression(part, bound)}:")
            waiting = [part for part in waiting if part not in ready]
            choices = [part for part in waiting if isinstance(part, Atom) and part.predicate != "="]
            missing = [variable for variable in types if variable not in bound]
            if choices:
                atom = min(choices, key=lambda choice: self._expected(choice, bound))
                waiting.remove(atom)
                self.bind(writer, atom, types, bound)
            elif missing:
                self.bind(writer, Atom(TYPE_PREFIX + types[missing[0]], (missing[0],)), {}, bound)
            elif not ready:
                break
        if waiting:
            raise TurnwiseError(f"PDDL: a condition uses a variable that nothing declares: {waiting[0]}")
        emit(writer, bound)

    def _expected(self, atom: Atom, bound: Mapping[str, str]) -> float:
        key = tuple(i for i, argument in enumerate(atom.args) if not argument.startswith("?") or argument in bound)
        return self.sizes(atom.predicate, key)

    def bind(self, writer: Writer, atom: Atom, types: Mapping[str, str], bound: dict[str, str], *, ordered: bool = False) -> None:
        """One loop over the facts of `atom` that agree with what is bound; binds the rest. `ordered`: in the order of the things."""
        key = tuple(i for i, argument in enumerate(atom.args) if not argument.startswith("?") or argument in bound)
        rest = [i for i in range(len(atom.args)) if i not in key]
        if not rest:
            writer.open(f"if {self.expression(atom, bound)}:")
            return
        kinds = [types.get(argument, ROOT_TYPE) if i in rest else ROOT_TYPE for i, argument in enumerate(atom.args)]
        container = f"X[{self.index(atom.predicate, len(atom.args), key, kinds)}]"
        if key:
            terms = [self.term(atom.args[i], bound) for i in key]
            wanted = terms[0] if len(terms) == 1 else f"({', '.join(terms)})"
            container = f"{container}.get({wanted}, {EMPTY})"
        targets: list[str] = []
        repeated: list[str] = []
        for i in rest:
            name = f"v{len(bound) + len(repeated)}"
            if atom.args[i] in bound:
                repeated.append(f"{name} == {bound[atom.args[i]]}")
            else:
                bound[atom.args[i]] = name
            targets.append(name)
        writer.open(f"for {', '.join(targets)} in {f'sorted({container})' if ordered else container}:")
        for test in repeated:
            writer.open(f"if {test}:")


def _branches(parts: list[Condition], types: dict[str, str]) -> list[tuple[list[Condition], dict[str, str]]]:
    """Conjunctions, flattened. An `or` is split into branches only if it binds a variable that nothing else binds."""
    flat: list[Condition] = []
    queue = list(parts)
    while queue:
        part = queue.pop(0)
        if isinstance(part, And):
            queue[:0] = part.parts
        elif isinstance(part, Exists):
            fresh = {name: f"{name}#{len(types) + i}" for i, (name, _) in enumerate(part.variables)}
            types.update({fresh[name]: kind for name, kind in part.variables})
            queue.insert(0, _renamed(part.part, fresh))
        else:
            flat.append(part)
    covered = {argument for part in flat if isinstance(part, Atom) and part.predicate != "=" for argument in part.args}
    for i, part in enumerate(flat):
        if isinstance(part, Or) and any(variable in types and variable not in covered for variable in free_variables(part)):
            return [branch for choice in part.parts for branch in _branches([*flat[:i], choice, *flat[i + 1 :]], dict(types))]
    return [(flat, types)]


def _renamed(condition: Condition, names: Mapping[str, str]) -> Condition:
    if isinstance(condition, Atom):
        return replace(condition, args=tuple(names.get(argument, argument) for argument in condition.args))
    if isinstance(condition, Not):
        return Not(_renamed(condition.part, names))
    if isinstance(condition, And | Or):
        return type(condition)(tuple(_renamed(part, names) for part in condition.parts))
    hidden = {name for name, _ in condition.variables}
    return type(condition)(condition.variables, _renamed(condition.part, {k: v for k, v in names.items() if k not in hidden}))
