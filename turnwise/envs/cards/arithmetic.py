"""Exact arithmetic over formulas that are built piece by piece: Python's parser, fractions, and all solutions of a deal.

A formula is a list of pieces: integers and the signs + - * / ( ). Nothing is ever evaluated as code, two numbers side by side are
not a larger number, and 8 / (3 - 8 / 3) is exactly 24.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Formula = tuple[str, ...]


SIGNS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(pieces: Sequence[str]) -> Fraction | None:
    """The value of a formula; None if it has none."""
    try:
        return _value_of(ast.parse(" ".join(pieces), mode="eval").body)
    except (SyntaxError, ZeroDivisionError):
        return None


def _value_of(node: ast.expr) -> Fraction:
    """The value of a syntax tree of numbers and the four signs; anything else is a `SyntaxError`."""
    match node:
        case ast.Constant(int(number)):
            return Fraction(number)
        case ast.BinOp(left, sign, right) if type(sign) in SIGNS:
            return SIGNS[type(sign)](_value_of(left), _value_of(right))
    raise SyntaxError("not a formula")


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
