"""Schemas of tools: from the type hints and the docstring of a Python function, and as text that a model reads.

Only what a model can write as JSON is described: text, numbers, booleans, lists, objects, a choice of values. Anything else is an error
when the tools are loaded, which names the parameter. `fitted` checks the arguments of a call against a schema; a problem is a sentence
for the model, never an exception.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from turnwise.util.errors import TurnwiseError, unknown_name

STATE = "state"  # a parameter of this name gets the dictionary of the attempt and is not shown to the model
PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
SECTION = re.compile(r"^\s*(args|arguments|parameters|params)\s*:?\s*$", re.IGNORECASE)
PARAMETER = re.compile(r"^\s*(?::param\s+)?\*{0,2}(\w+)(?:\s*\([^)]*\))?\s*:\s*(.+)$")
KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (NoneType,),
}


@dataclass(frozen=True)
class Tool:
    """What a model is told about a tool. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def schema(self) -> dict[str, Any]:
        """The form that chat templates take."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }

    def as_text(self) -> str:
        """One line for a prompt."""
        return json.dumps({"name": self.name, "description": self.description, "parameters": self.parameters}, ensure_ascii=False)


def describe(function: Callable[..., Any], name: str = "", hidden: str = STATE) -> Tool:
    """The tool that a Python function is. `hidden`: the parameter that the model does not see."""
    own = name or function.__name__
    summary, about = _documented(inspect.getdoc(function) or "")
    try:
        hints = get_type_hints(function)
    except Exception as error:
        raise TurnwiseError(f"tool {own!r}: its type hints cannot be read: {type(error).__name__}: {error}") from None
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == hidden:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TurnwiseError(f"tool {own!r}: a tool takes its arguments by name; {parameter} cannot be given that way")
        found = _kind(hints.get(parameter.name, str), f"tool {own!r}, parameter {parameter.name!r}")
        if parameter.name in about:
            found["description"] = about[parameter.name]
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
        elif isinstance(parameter.default, str | int | float | bool):
            found["default"] = parameter.default
        properties[parameter.name] = found
    return Tool(own, summary, {"type": "object", "properties": properties, "required": required})


def _kind(hint: Any, where: str) -> dict[str, Any]:
    """The JSON schema of a type hint."""
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        kinds = {PLAIN.get(type(value)) for value in inner}
        if None not in kinds and len(kinds) == 1:
            return {"type": kinds.pop(), "enum": list(inner)}
    if origin in (Union, UnionType):
        choices = [_kind(one, where) for one in inner if one is not NoneType]
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    if hint in (list, tuple) or origin in (list, tuple, Sequence):
        return {"type": "array"} | ({"items": _kind(inner[0], where)} if inner and inner[0] is not Any else {})
    if hint is dict or origin in (dict, Mapping):
        return {"type": "object"}
    if hint is Any:
        return {}
    raise TurnwiseError(f"{where}: {hint} cannot be written as JSON. Use str, int, float, bool, list, dict, Literal or a union of them")


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """The description in a docstring, and what it says about each parameter."""
    body: list[str] = []
    about: dict[str, str] = {}
    inside = False
    for line in text.splitlines():
        found = PARAMETER.match(line)
        if SECTION.match(line):
            inside = True
        elif found and (inside or line.lstrip().startswith(":param")):
            about[found[1]] = found[2].strip()
        elif inside and not line.strip():
            inside = False
        elif not inside:
            body.append(line)
    return "\n".join(body).strip(), about


def fitted(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """What is wrong with the arguments of a call, as a sentence; empty if nothing is. Objects inside arguments are left to the tool."""
    properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
    for name in tool.parameters.get("required") or ():
        if name not in arguments:
            return f"{tool.name} needs the argument {name!r}."
    for name, value in arguments.items():
        if name not in properties:
            if properties and tool.parameters.get("additionalProperties") in (None, False):
                return str(unknown_name(f"argument of {tool.name}:", str(name), list(properties)))
            continue
        if wrong := _mismatch(value, properties[name]):
            return f"The argument {name!r} of {tool.name} must be {wrong}."
    return ""


def _mismatch(value: Any, schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return ""
    if isinstance(options := schema.get("enum"), list) and value not in options:
        return f"one of {', '.join(json.dumps(option, ensure_ascii=False) for option in options[:20])}"
    given = schema.get("type")
    kinds = [kind for kind in ([given] if isinstance(given, str) else given or ()) if kind in KINDS]
    fits = any(isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds)
    if kinds and not fits and not (isinstance(value, float) and value.is_integer() and "integer" in kinds):
        return f"of type {' or '.join(kinds)}"
    if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        inner = next((wrong for item in value if (wrong := _mismatch(item, items))), "")
        return f"a list of values {inner}" if inner else ""
    return ""
