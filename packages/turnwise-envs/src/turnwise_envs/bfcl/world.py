"""The simulated APIs of an attempt: calls of documented functions, and their state as plain values.

The classes are the package's own; each attempt has fresh objects. A call changes nothing outside them: what the package keeps in modules
(precision of decimal and mpmath, the lists that make contexts long) is copied or set back. What a call returns is turned into text as the
package does it, because its checker compares texts.
"""

from __future__ import annotations

import copy
import decimal
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from turnwise.envs.tools.calls import Call, Mistake
from turnwise.envs.tools.schemas import fitted
from turnwise.util.errors import unknown_name
from turnwise_envs.bfcl.benchmark import STATELESS, Entry, Function, functions, simulator

LIMITS = {"exponent": 1000, "precision": 1000, "decimal_places": 1000}  # larger ones would compute for hours
DIGITS = 15  # mpmath's precision unless a function sets it


class World:
    """The objects of a task's classes, as they are at the start."""

    def __init__(self, entry: Entry):
        self.objects: dict[str, Any] = {}
        for name in entry.classes:
            made = simulator(name)()
            if name not in STATELESS:
                made._load_scenario(copy.deepcopy(dict(entry.config.get(name, {}))), long_context=entry.long_context)
            self.objects[name] = made
        if entry.long_context:  # which puts objects of the package's modules into the state
            self.objects = _copied(self.objects)
        self.functions = offered(entry)

    def copied(self) -> World:
        """The same state in objects of its own."""
        other = copy.copy(self)
        other.objects = _copied(self.objects)
        return other

    def call(self, call: Call) -> str:
        """The result of a call that has passed `fit`, as the package writes it. A function that fails says so in its result."""
        method = getattr(self.objects[self.functions[call.name].owner], call.name)
        with _kept_precision():
            try:
                return _as_text(method(**copy.deepcopy(call.arguments)))
            except Exception as error:
                return f"Error during execution: {error}"


def _copied(objects: dict[str, Any]) -> dict[str, Any]:
    """A deep copy. Generators are copied apart: that is much faster than by `deepcopy`."""
    known: dict[int, Any] = {}
    for one in objects.values():
        if isinstance(old := getattr(one, "_random", None), random.Random):
            known[id(old)] = random.Random(0)
            known[id(old)].setstate(old.getstate())
    return copy.deepcopy(objects, known)


def offered(entry: Entry) -> dict[str, Function]:
    """The functions of a task's classes."""
    return {key: value for name in entry.classes for key, value in functions(name).items()}


def fit(call: Call, known: Mapping[str, Function]) -> Call | Mistake:
    """The call with all arguments by name, or what is wrong with it."""
    found = known.get(call.name)
    if found is None:
        return Mistake(f"{unknown_name('tool', call.name[:100], list(known))}.")
    arguments: dict[str, Any] = {}
    for key, value in call.arguments.items():
        place = int(key) if key.isdecimal() and len(key) < 4 else -1
        if place >= len(found.order):
            return Mistake(f"{call.name} takes {len(found.order)} arguments: {', '.join(found.order)}.")
        name = found.order[place] if place >= 0 else key
        if name in arguments:
            return Mistake(f"The argument {name!r} of {call.name} is given twice.")
        if value is not None or name in found.tool.parameters["required"]:
            arguments[name] = value
        if name in LIMITS and isinstance(value, int | float) and abs(value) > LIMITS[name]:
            return Mistake(f"The argument {name!r} of {call.name} is at most {LIMITS[name]}.")
    wrong = fitted(found.tool, arguments)
    return Mistake(wrong) if wrong else Call(call.name, arguments)


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except Exception:  # a value that JSON does not know
            return str(result)
    return str(result)


@contextmanager
def _kept_precision() -> Iterator[None]:
    """Some functions set the precision of the whole process."""
    numbers = import_module("mpmath").mp
    before = numbers.dps
    numbers.dps = DIGITS
    try:
        with decimal.localcontext(decimal.Context()):
            yield
    finally:
        numbers.dps = before
