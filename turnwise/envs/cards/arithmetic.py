"""Exact arithmetic over formulas that are built piece by piece: a parser, fractions, and all solutions of a deal.

A formula is a list of pieces: integers and the signs + - * / ( ). Nothing is ever evaluated as code, two numbers side by side are
not a larger number, and 8 / (3 - 8 / 3) is exactly 24.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Formula = tuple[str, ...]


class NotAFormula(ValueError):
    """The pieces do not form an expression, or it divides by zero."""


def evaluate(pieces: Sequence[str]) -> Fraction | None:
    """The value of a formula; None if it has none."""
    try:
        reader = _Reader(tuple(pieces))
        value = reader.sum()
        return value if reader.place == len(reader.pieces) else None
    except NotAFormula:
        return None


@dataclass
class _Reader:
    """Reads sums of products of numbers and brackets, from left to right. Brackets nest no deeper than the formula is long."""

    pieces: Formula
    place: int = 0

    def _next_of(self, signs: str) -> str:
        """The next piece if it is one of these signs, otherwise an empty text."""
        if self.place < len(self.pieces) and self.pieces[self.place] in tuple(signs):
            self.place += 1
            return self.pieces[self.place - 1]
        return ""

    def sum(self) -> Fraction:
        value = self.product()
        while sign := self._next_of("+-"):
            other = self.product()
            value = value + other if sign == "+" else value - other
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while sign := self._next_of("*/"):
            other = self.factor()
            if sign == "/" and other == 0:
                raise NotAFormula("division by zero")
            value = value * other if sign == "*" else value / other
        return value

    def factor(self) -> Fraction:
        if self._next_of("("):
            value = self.sum()
            if not self._next_of(")"):
                raise NotAFormula("a bracket is not closed")
            return value
        if self.place < len(self.pieces) and self.pieces[self.place].isdecimal():
            self.place += 1
            return Fraction(int(self.pieces[self.place - 1]))
        raise NotAFormula("a number or a bracket is missing")


@dataclass(frozen=True, slots=True)
class _Tree:
    """An expression: its value as an integer over another, its pieces, and how tightly its outermost sign binds (3 a number, 2 a
    product, 1 a sum)."""

    over: int
    under: int
    pieces: Formula
    binds: int = 3


def _joined(left: _Tree, sign: str, right: _Tree) -> _Tree:
    over, under = _value(left, sign, right)
    binds = 1 if sign in "+-" else 2
    # On the right the same strength also needs brackets: 8 - (3 - 1).
    return _Tree(over, under, (*_bracketed(left, binds), sign, *_bracketed(right, binds + 1)), binds)


def _value(left: _Tree, sign: str, right: _Tree) -> tuple[int, int]:
    """Plain pairs of integers: as exact as fractions and several times faster."""
    if sign == "+":
        return left.over * right.under + right.over * left.under, left.under * right.under
    if sign == "-":
        return left.over * right.under - right.over * left.under, left.under * right.under
    if sign == "*":
        return left.over * right.over, left.under * right.under
    return left.over * right.under, left.under * right.over


def _bracketed(tree: _Tree, least: int) -> Formula:
    return tree.pieces if tree.binds >= least else ("(", *tree.pieces, ")")


@lru_cache(maxsize=2048)
def solutions(numbers: tuple[int, ...], signs: str, goal: int) -> tuple[Formula, ...]:
    """All formulas that use each number once and give the goal, shortest first, with no more brackets than they need."""
    found = {tree.pieces for tree in _solving(numbers, signs, goal)}
    return tuple(sorted(found, key=lambda pieces: (len(pieces), pieces)))


@lru_cache(maxsize=4096)
def solvable(numbers: tuple[int, ...], signs: str, goal: int) -> bool:
    """Whether some formula that uses each number once gives the goal."""
    return next(_solving(tuple(sorted(numbers)), signs, goal), None) is not None


def _solving(numbers: tuple[int, ...], signs: str, goal: int) -> Iterator[_Tree]:
    """The expressions over all numbers that give the goal. Those over every smaller selection are made first; a selection is a bit mask."""
    trees = {1 << place: [_Tree(number, 1, (str(number),))] for place, number in enumerate(numbers)}
    whole = (1 << len(numbers)) - 1
    for mask in range(1, whole):
        if mask not in trees:
            trees[mask] = [_joined(left, sign, right) for left, sign, right in _pairs(mask, trees, signs)]
    if len(numbers) == 1:
        yield from (tree for tree in trees[whole] if tree.over == goal)
        return
    for left, sign, right in _pairs(whole, trees, signs):
        over, under = _value(left, sign, right)
        if over == goal * under:  # only solutions are written out
            yield _joined(left, sign, right)


def _pairs(mask: int, trees: dict[int, list[_Tree]], signs: str) -> Iterator[tuple[_Tree, str, _Tree]]:
    """Every way to split a selection in two and join the expressions of both; nothing is divided by zero."""
    part = (mask - 1) & mask
    while part:
        for left in trees[part]:
            for right in trees[mask ^ part]:
                for sign in signs:
                    if sign != "/" or right.over:
                        yield left, sign, right
        part = (part - 1) & mask
