"""Named functions with typed options: what `credit` and `objectives` are registered in.

An algorithm is a function whose keyword-only parameters are its options. Annotations carry everything a user needs to see and the
registry needs to check, so that the help text, the error messages and the signature can never disagree:

    gamma: Annotated[float, Help("discount per turn", low=0, high=1)] = 0.95
    norm: Annotated[Literal["std", "none"], Help("divide by the group's standard deviation, or not")] = "std"
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from turnwise.util.errors import TurnwiseError, unknown_name

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Help:
    """What an option means, and the closed range of a number."""

    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Option:
    """One option of a registered function, read from its signature."""

    name: str
    type: type
    default: Any
    help: Help
    choices: tuple[Any, ...] = ()
    optional: bool = False

    @property
    def kind(self) -> str:
        """The type in words: `std|none`, `number ≥ 0`, `true|false` …"""
        if self.choices:
            return "|".join(map(str, self.choices))
        word = {float: "number", int: "whole number", bool: "true|false", str: "text"}[self.type]
        low, high = self.help.low, self.help.high
        if low is not None and high is not None:
            word += f" in [{low:g}, {high:g}]"
        elif low is not None:
            word += f" ≥ {low:g}"
        elif high is not None:
            word += f" ≤ {high:g}"
        return word + (" or none" if self.optional else "")

    def check(self, value: Any, owner: str) -> Any:
        """The value, converted where that loses nothing; otherwise an error that says what would be right."""
        if value is None and self.optional:
            return None
        if self.choices:
            if isinstance(value, str) and value not in self.choices:
                raise unknown_name(f"{owner} option {self.name}", value, map(str, self.choices))
            good = value in self.choices
        elif self.type is bool:
            good = isinstance(value, bool) or type(value).__name__ == "bool"
        elif self.type is str:
            good = isinstance(value, str)
        else:
            good = self._is_number(value)
        if not good:
            raise TurnwiseError(f"{owner}: option {self.name} takes {self.kind}, not {value!r}")
        return value if self.choices else self.type(value)

    def _is_number(self, value: Any) -> bool:
        if isinstance(value, (bool, str)) or type(value).__name__ == "bool":
            return False
        try:
            number = float(value)
        except (TypeError, ValueError):
            return False
        low, high = self.help.low, self.help.high
        inside = (low is None or number >= low) and (high is None or number <= high)
        return math.isfinite(number) and inside and (self.type is float or number == int(number))


@dataclass(frozen=True)
class Entry(Generic[F]):
    """A registered function with its one-line meaning, its options and where it comes from. `parts`: what a credit function is the sum of,
    each with the option that weighs it, or none where it is the whole credit (see `turnwise/credit/registry.py`)."""

    name: str
    function: F
    summary: str
    paper: str
    options: Mapping[str, Option]
    parts: Mapping[str, str | None] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()

    def make(self, given: Mapping[str, Any], kind: str) -> Callable[..., Any]:
        """What is used: the function with its options bound, or an object of the class, made with them."""
        bound = self.bind(given, kind)
        return self.function(**bound) if isinstance(self.function, type) else partial(self.function, **bound)

    def bind(self, given: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Checked options, defaults filled in."""
        owner = f"{kind} {self.name!r}"
        for name in given:
            if name not in self.options:
                raise unknown_name(f"option of {owner}:", name, self.options)
        return {name: option.check(given.get(name, option.default), owner) for name, option in self.options.items()}


class Registry(Generic[F]):
    """Names to functions. `kind` is the word for them in messages; `load` imports the files that register the built-in ones."""

    def __init__(self, kind: str, load: Callable[[], None] = lambda: None):
        self.kind = kind
        self._load: Callable[[], None] | None = load
        self._entries: dict[str, Entry[F]] = {}

    def register(
        self,
        name: str,
        *,
        paper: str = "",
        parts: Mapping[str, str | None] | None = None,
        needs: Sequence[str] = (),
        gives: Sequence[str] = (),
    ) -> Callable[[F], F]:
        """Decorator: makes the function known under `name`. The first sentence of its docstring is its meaning in lists."""

        def add(function: F) -> F:
            known = self._entries.get(name)
            # the same definition again (a module that is reloaded, a notebook cell that is run twice) replaces; another one is a clash
            if known is not None and known.function.__qualname__ != function.__qualname__:
                raise TurnwiseError(f"{self.kind} {name!r} is already registered, by {known.function.__module__}")
            doc = inspect.getdoc(function) or ""
            summary = " ".join(doc.split("\n\n")[0].split())
            if not summary:
                raise TurnwiseError(f"{self.kind} {name!r} needs a docstring: its first sentence is what users see in lists")
            self._entries[name] = Entry(
                name, function, summary, paper, read_options(function), dict(parts or {}), tuple(needs), tuple(gives)
            )
            return function

        return add

    def adopt(self, name: str, function: F) -> None:
        """Make a function of the user's own known under the name that a recipe has for it, in place of what that name meant before."""
        doc = inspect.getdoc(function) or ""
        summary = " ".join(doc.split("\n\n")[0].split()) or f"a function of your own ({name})"
        self._ready()[name] = Entry(name, function, summary, "", read_options(function))

    def _ready(self) -> dict[str, Entry[F]]:
        if self._load is not None:
            load, self._load = self._load, None
            load()
        return self._entries

    def __getitem__(self, name: str) -> Entry[F]:
        entries = self._ready()
        if name not in entries:
            raise unknown_name(self.kind, str(name), entries)
        return entries[name]

    def __iter__(self) -> Iterator[Entry[F]]:
        entries = self._ready()
        return iter([entries[name] for name in sorted(entries)])

    def __contains__(self, name: object) -> bool:
        return name in self._ready()

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._ready())


def read_options(function: Callable[..., Any]) -> dict[str, Option]:
    """The keyword-only parameters of a function as options."""
    hints = get_type_hints(inspect.getattr_static(function, "__init__") if isinstance(function, type) else function, include_extras=True)
    return {
        name: _read_option(name, hints.get(name, type(parameter.default)), parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def _read_option(name: str, hint: Any, default: Any) -> Option:
    help_ = Help("")
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        help_ = next((note for note in notes if isinstance(note, Help)), help_)
    if get_origin(hint) is Literal:
        return Option(name, str, default, help_, choices=get_args(hint))
    parts = [part for part in get_args(hint) if part is not type(None)]
    optional = bool(parts)
    return Option(name, parts[0] if optional else hint, default, help_, optional=optional)


def mistaken(value: Any, annotation: Any) -> str:
    """What is wrong with a value that would quietly be converted: a switch where a number belongs, a number where a switch does. Empty
    where nothing is. Lists are looked at one by one. An annotation may be text, as a signature has it."""
    if isinstance(annotation, str):
        parts = {kind for kind in (int, float, bool) if re.search(rf"\b{kind.__name__}\b", annotation)}
    else:
        parts = {annotation, *(part for part in get_args(annotation) if get_origin(annotation) in (Union, UnionType))}
    if isinstance(value, (list, tuple)):
        inner = [get_args(part) for part in parts if get_origin(part) in (list, tuple)]
        kinds = [one for args in inner for one in args if one is not Ellipsis]
        return next((wrong for item in value for kind in kinds[:1] if (wrong := mistaken(item, kind))), "")
    numbers, switch = parts & {int, float}, bool in parts
    if isinstance(value, bool) and numbers and not switch:
        return f"{'a whole number' if float not in numbers else 'a number'} is needed, not {str(value).lower()}"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if switch and not numbers and (is_number or value in ("0", "1")):
        return f"true or false is needed, not {value}"
    return ""
