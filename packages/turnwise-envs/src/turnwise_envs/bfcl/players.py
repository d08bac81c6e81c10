"""Players that know no solution: calls whose values come from what was said so far, at random or by a simple rule."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise_envs.bfcl.benchmark import Function
from turnwise_envs.bfcl.calls import DONE, written

QUOTED = re.compile(r"['\"]([^'\"\n]{1,200})['\"]")
FILES = re.compile(r"\b[\w-]+\.\w{1,5}\b")
CODES = re.compile(r"\b[A-Z]{3,4}\b")
NUMBERS = re.compile(r"-?\d+(?:\.\d+)?")
WORDS = re.compile(r"[a-z]{3,}")
CAPITALS = re.compile(r"(?<=[a-z])(?=[A-Z])")
CHOICES = re.compile(r"\[Enum\]: \[([^\]]*)\]")
READ = 4000  # characters of a text that values are taken from
MOST = 30  # values that are kept


@dataclass
class Heard:
    """The words and the numbers in what was said so far that could be arguments, the latest first."""

    words: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)

    def hear(self, text: str) -> None:
        part = text[:READ]
        words = [word for pattern in (QUOTED, FILES, CODES) for word in pattern.findall(part)]
        numbers = [number for number in NUMBERS.findall(part) if len(number) <= 12]
        self.words = list(dict.fromkeys([*words, *self.words]))[:MOST]
        self.numbers = list(dict.fromkeys([*numbers, *self.numbers]))[:MOST]


def random_call(functions: Mapping[str, Function], heard: Heard, chance: random.Random) -> str:
    """A plausible call: any function, with values of the right type from what was said. One in five is the end of the request."""
    if chance.random() < 0.2:
        return DONE
    found = chance.choice(list(functions.values()))
    needed = found.tool.parameters["required"]
    arguments = {
        name: _any(schema, heard, chance)
        for name, schema in found.tool.parameters["properties"].items()
        if name in needed or chance.random() < 0.3
    }
    return written(found.tool.name, arguments)


def _any(schema: Mapping[str, Any], heard: Heard, chance: random.Random) -> Any:
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    if kind == "boolean":
        return chance.random() < 0.5
    if kind in ("integer", "number"):
        number = chance.choice(heard.numbers or ["1"])
        return int(float(number)) if kind == "integer" else float(number)
    if kind == "array":
        return [_any(schema["items"], heard, chance) for _ in range(chance.randint(1, 2))]
    if kind == "object":
        return {}
    return chance.choice(_choices(schema) or heard.words or ["."])


def _choices(schema: Mapping[str, Any]) -> list[str]:
    """The values that a description lists."""
    listed = CHOICES.search(str(schema.get("description", "")))
    return re.findall(r'"([^"]*)"', listed[1]) if listed else []


def plain_call(functions: Mapping[str, Function], request: str) -> str:
    """The function whose name and description have most words in common with the request, with the values that the request quotes or
    names in their order."""
    asked = set(_words(request))

    def likeness(found: Function) -> tuple[float, str]:
        named, told = set(_words(found.tool.name)), set(_words(found.tool.description))
        return len(asked & named) * 2 + len(asked & told) / (1 + len(told)), found.tool.name

    best = max(functions.values(), key=likeness)
    heard = Heard()
    heard.hear(request)
    arguments: dict[str, Any] = {}
    for name in best.tool.parameters["required"]:
        schema = best.tool.parameters["properties"][name]
        said = next((choice for choice in _choices(schema) if choice.lower() in request.lower()), None)
        arguments[name] = said if said is not None else _first(schema, heard)
    return written(best.tool.name, arguments)


def _first(schema: Mapping[str, Any], heard: Heard) -> Any:
    """The next value of this type, which is used up."""
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    if kind in ("integer", "number"):
        number = heard.numbers.pop(0) if heard.numbers else "1"
        return int(float(number)) if kind == "integer" else float(number)
    if kind == "array":
        return [_first(schema["items"], heard)]
    if kind in ("boolean", "object"):
        return True if kind == "boolean" else {}
    return heard.words.pop(0) if heard.words else "."


def _words(text: str) -> list[str]:
    """The words of a text or of a name such as setHeadlights or post_tweet, without endings."""
    return [word.removesuffix("s").removesuffix("e") for word in WORDS.findall(CAPITALS.sub(" ", text).replace("_", " ").lower())]
