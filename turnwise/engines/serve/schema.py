"""Whether JSON matches a schema: the part of JSON Schema that clients send for structured answers.

Checked are type, enum, const, properties, required, additionalProperties, items, prefixItems, anyOf, oneOf, allOf, $ref into the schema
itself, and bounds of numbers, texts and lists. Other keywords, such as pattern and format, are not checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

DEEPEST = 64
STEPS = 200_000  # of one check
SHOWN = 100  # characters of a name in a message
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int,),
}
BOUNDS: tuple[tuple[str, tuple[type, ...], Callable[[Any, Any], bool]], ...] = (
    ("minimum", (int, float), lambda value, bound: value >= bound),
    ("maximum", (int, float), lambda value, bound: value <= bound),
    ("exclusiveMinimum", (int, float), lambda value, bound: value > bound),
    ("exclusiveMaximum", (int, float), lambda value, bound: value < bound),
    ("minLength", (str,), lambda value, bound: len(value) >= bound),
    ("maxLength", (str,), lambda value, bound: len(value) <= bound),
    ("minItems", (list,), lambda value, bound: len(value) >= bound),
    ("maxItems", (list,), lambda value, bound: len(value) <= bound),
)


class TooCostly(Exception):
    """A schema whose check takes too many steps."""


def mismatch(text: str, schema: Mapping[str, Any]) -> str:
    """Why a text does not match this schema; empty if it does. Raises `TooCostly`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "the answer is not JSON"
    return _Check(schema).differs(value, schema, "the answer", 0)


class _Check:
    """One check. Each part of the schema is compared with each part of the value at most once, so references cannot multiply the work; a
    part that is being compared already, because a schema refers to itself, matches."""

    def __init__(self, schema: Mapping[str, Any]):
        self._schema = schema
        self._results: dict[tuple[int, int], str] = {}
        self._steps = 0

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > STEPS:
            raise TooCostly(f"it takes more than {STEPS} steps")

    def differs(self, value: Any, schema: Any, where: str, level: int) -> str:
        """Why a value does not match; empty if it does. A schema that cannot be read matches everything."""
        if schema is False:
            return f"{where} must not be there"
        if not isinstance(schema, Mapping) or level > DEEPEST:
            return ""
        pair = id(schema), id(value)
        if pair not in self._results:
            self._count(1)
            self._results[pair] = ""
            self._results[pair] = self._compared(value, schema, where, level)
        return self._results[pair]

    def _compared(self, value: Any, schema: Mapping[str, Any], where: str, level: int) -> str:
        if isinstance(schema.get("$ref"), str):
            return self.differs(value, self._found(schema["$ref"]), where, level + 1)
        if problem := self._plain(value, schema, where):
            return problem
        for one in _list(schema.get("allOf")):
            if problem := self.differs(value, one, where, level + 1):
                return problem
        for name in ("anyOf", "oneOf"):
            choices = _list(schema.get(name))
            if choices and all(self.differs(value, one, where, level + 1) for one in choices):
                return f"{where} matches none of {name}"
        if isinstance(value, dict):
            return self._object(value, schema, where, level)
        return self._array(value, schema, where, level) if isinstance(value, list) else ""

    def _plain(self, value: Any, schema: Mapping[str, Any], where: str) -> str:
        """Type, choices and bounds."""
        kinds = schema.get("type")
        names = [kinds] if isinstance(kinds, str) else [kind for kind in _list(kinds) if isinstance(kind, str)]
        self._count(len(names) + len(_list(schema.get("enum"))))
        if names and not any(_is(value, name) for name in names):
            return f"{where} is not of the type {' or '.join(names)[:SHOWN]}"
        if isinstance(schema.get("enum"), list) and not any(_same(value, one) for one in schema["enum"]):
            return f"{where} is none of the choices"
        if "const" in schema and not _same(value, schema["const"]):
            return f"{where} is not the constant"
        for name, types, holds in BOUNDS:
            bound = schema.get(name)
            if isinstance(bound, (int, float)) and isinstance(value, types) and not isinstance(value, bool) and not holds(value, bound):
                return f"{where} breaks {name} {bound}"
        return ""

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], where: str, level: int) -> str:
        properties = schema["properties"] if isinstance(schema.get("properties"), Mapping) else {}
        required = _list(schema.get("required"))
        self._count(len(required) + len(value))
        for name in required:
            if isinstance(name, str) and name not in value:
                return f"{where} has no {name[:SHOWN]!r}"
        others = schema.get("additionalProperties", True)
        for name, inner in value.items():
            if name not in properties and others is False:
                return f"{where} has {name[:SHOWN]!r}, which the schema does not name"
            if problem := self.differs(inner, properties.get(name, others), f"{where}.{name[:SHOWN]}", level + 1):
                return problem
        return ""

    def _array(self, value: list[Any], schema: Mapping[str, Any], where: str, level: int) -> str:
        first = _list(schema.get("prefixItems"))
        self._count(len(value))
        for place, inner in enumerate(value):
            one = first[place] if place < len(first) else schema.get("items", True)
            if problem := self.differs(inner, one, f"{where}[{place}]", level + 1):
                return problem
        return ""

    def _found(self, reference: str) -> Any:
        """What a reference such as #/$defs/Item names."""
        place: Any = self._schema
        parts = reference.removeprefix("#").strip("/").split("/") if reference != "#" else []
        self._count(len(parts))
        for part in parts:
            place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
        return place


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(name, (object,)))


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
