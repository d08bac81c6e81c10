"""What stands between a model's text and the package's scorers.

Some scorers evaluate the answer as Python, directly or through sympy. They never get a model's text here: a list is read as a literal, an
expression is parsed, checked node by node, and written again from the parsed tree. Others run for hours on a large number
(`U99999999` turns a cube that often), or give full marks for "nan". Such answers score 0 without the scorer.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

LITERALS = frozenset({"string_insertion", "spiral_matrix", "binary_matrix", "n_queens"})  # their scorers call eval on the answer
ARITHMETIC = frozenset({"countdown", "puzzle24"})  # theirs, and the next ones, let sympy evaluate it
POLYNOMIALS = frozenset({"polynomial_multiplication"})
INTEGRALS = frozenset({"simple_integration", "intermediate_integration"})
MOVES = frozenset({"rubiks_cube", "rush_hour"})  # theirs repeat a move as often as the answer says
NUMBERS = frozenset({"complex_arithmetic", "polynomial_equations", "coin_flip"})  # not a number is no distance to the right one
OWN_TEXT = frozenset({"bitwise_arithmetic", "basic_arithmetic", "number_sorting", "gsm_symbolic", "propositional_logic"})
LEFT_OUT: Mapping[str, str] = {
    "composite": "it only mixes the others: name several generators instead",
    "codeio": "it runs programs from its data in this process",
    "game_of_life_halting": "its scorer takes every answer as right",
    "knight_swap": "a task takes many seconds, and differs between processes",
}
AUDITED = LITERALS | ARITHMETIC | POLYNOMIALS | INTEGRALS | OWN_TEXT
RISKY = re.compile(r"(?<![\w.])(eval|exec|compile|__import__)\(|\b(parse_expr|sympify|system)\(|\bpickle\b|\bsubprocess\b")
FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "Abs"}
)
CONSTANTS = frozenset({"C", "E", "pi"})
LONGEST, NODES, POWER = 4000, 200, 64
HUGE = re.compile(r"\d[eE][+-]?\d{4,}")  # 1e999999999
LONG_NUMBER = re.compile(r"\d{3,}")
NO_NUMBER = re.compile(r"nan|inf", re.IGNORECASE)


def allowed(name: str, dataset_class: type) -> bool:
    """Whether a generator may be used: it is not left out, and code in it that could evaluate text was looked at."""
    return name not in LEFT_OUT and (name in AUDITED or RISKY.search(_source(dataset_class)) is None)


def _source(dataset_class: type) -> str:
    try:
        return inspect.getsource(sys.modules[dataset_class.__module__])
    except (OSError, KeyError):
        return "eval("  # code that cannot be read is not used


def disarm(name: str, dataset_class: type) -> None:
    """Let a scorer that evaluates answers read literals only: its module gets a name that hides the built-in function."""
    if name in LITERALS:
        sys.modules[dataset_class.__module__].__dict__["eval"] = ast.literal_eval


def admitted(name: str, answer: str, entry: Mapping[str, Any]) -> str | None:
    """The text that the scorer may see; None if the answer scores 0 without it."""
    right = str(entry["answer"] or "")
    if len(answer) > max(LONGEST, 4 * len(right)) or HUGE.search(answer):
        return None
    if name in MOVES and LONG_NUMBER.search(answer):
        return None
    if name in NUMBERS and NO_NUMBER.search(answer):
        return None
    if name in ARITHMETIC:
        return expression(answer, ())
    if name in POLYNOMIALS:
        return expression(answer, entry["metadata"]["variables"])
    if name in INTEGRALS:
        return expression(answer, {entry["metadata"]["variable"], *CONSTANTS}, FUNCTIONS)
    return answer


def expression(text: str, names: Collection[str], functions: Collection[str] = ()) -> str | None:
    """An arithmetic expression of numbers, these names and functions, written anew; None if it is anything else, or too large."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    if sum(1 for _ in ast.walk(tree)) > 4 * NODES or not _plain(tree.body, frozenset(names), frozenset(functions), POWER):
        return None
    return ast.unparse(tree)


def _plain(node: ast.expr, names: frozenset[str], functions: frozenset[str], power: float) -> bool:
    """Whether only what is allowed is below this node, with powers of at most `power` in all."""
    match node:
        case ast.Constant(value=bool()):
            return False
        case ast.Constant(value=int() | float() as value):
            return abs(value) < 1e15
        case ast.Name(id=name):
            return name in names
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=inner):
            return _plain(inner, names, functions, power)
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            size = _size(right)
            return size is not None and size <= power and _plain(left, names, functions, power / max(size, 1.0))
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), left=left, right=right):
            return _plain(left, names, functions, power) and _plain(right, names, functions, power)
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]):
            return name in functions and _plain(inner, names, functions, power)
    return False


def _size(node: ast.expr) -> float | None:
    """The size of a constant exponent, such as 2, -3 or 1/2."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return abs(value)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=inner):
            return _size(inner)
        case ast.BinOp(op=ast.Div(), left=ast.Constant(value=int() as over), right=ast.Constant(value=int() as under)) if under:
            return abs(over / under)
    return None
