"""The functions of a task as text for a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from turnwise_envs.bfcl.benchmark import Function

Style = Literal["short", "signatures", "schemas", "none"]
STYLES: tuple[str, ...] = get_args(Style)
PYTHON = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "object": "dict"}


def described(functions: Mapping[str, Function], style: Style, heading: str) -> str:
    """One line per function under a heading."""
    return "\n".join([heading, *(_line(found, style) for found in functions.values())])


def _line(found: Function, style: Style) -> str:
    if style == "schemas":
        return found.tool.as_text()
    return signature(found) + (f": {_sentence(found.tool.description)}" if style == "short" else "")


def signature(found: Function) -> str:
    """A function as in Python: cd(folder: str)."""
    needed = found.tool.parameters["required"]
    given = found.tool.parameters["properties"]
    return f"{found.tool.name}({', '.join(_parameter(name, given[name], name in needed) for name in found.order)})"


def _parameter(name: str, schema: Mapping[str, Any], needed: bool) -> str:
    if needed:
        return f"{name}: {_kind(schema)}"
    default = schema.get("default")
    shown = repr(default) if isinstance(default, bool | int | float | str) and default != "None" else "None"
    return f"{name}: {_kind(schema)} = {shown}"


def _kind(schema: Mapping[str, Any]) -> str:
    given = schema["type"]
    if isinstance(given, list):  # integers or texts: what the first says is the usual case
        given = given[0]
    return f"list[{_kind(schema['items'])}]" if given == "array" else PYTHON[given]


def _sentence(text: str) -> str:
    """The first sentence."""
    return text.partition(". ")[0].rstrip(".") + "."
