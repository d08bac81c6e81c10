"""Registries of named functions and classes with typed options: credit, objectives, plans, signals, schedules …

A component is a function whose keyword-only parameters are its options, or a class whose `__init__` has them. Annotations carry
everything that a user needs to see and the registry needs to check, so that the help text, the error messages and the signature can never
disagree:

    gamma: Annotated[float, Help("discount per turn", low=0, high=1)] = 0.95
    norm: Annotated[Literal["std", "none"], Help("divide by the group's standard deviation, or not")] = "std"

A registry finds a component by its registered name and, if the registry allows code of that kind, by `package.module:name` or
`path/to/file.py:name`. Looking up such a name (`registry[name]`) imports the code; `registry.known(name)` never does.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from turnwise.config import addons, plugins
from turnwise.config.kinds import Kind
from turnwise.config.loading import load_reference
from turnwise.config.references import is_reference
from turnwise.util.errors import TurnwiseError, deprecated, unknown_name

F = TypeVar("F", bound=Callable[..., Any])
WORDS = {float: "number", int: "integer", bool: "true|false", str: "text", list: "list", tuple: "list", dict: "table", object: "value"}
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Help:
    """What an option means, and the closed range of a number."""

    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Option:
    """One option of a registered component, read from its signature. `default` is REQUIRED if there is none."""

    name: str
    type: type
    default: Any
    help: Help
    choices: tuple[Any, ...] = ()
    optional: bool = False

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is REQUIRED

    @property
    def usual(self) -> Any:
        """The default converted to its type: 1 becomes 1.0 for a number. A default that does not fit stays as it is."""
        with contextlib.suppress(TurnwiseError):
            return self.check(self.default, "")
        return self.default

    @property
    def kind(self) -> str:
        """The type as text: `std|none`, `number ≥ 0`, `true|false` …"""
        if self.choices:
            return "|".join(map(str, self.choices)) + (" or none" if self.optional else "")
        word = WORDS[self.type]
        low, high = self.help.low, self.help.high
        if low is not None and high is not None:
            word += f" in [{low:g}, {high:g}]"
        elif low is not None:
            word += f" ≥ {low:g}"
        elif high is not None:
            word += f" ≤ {high:g}"
        return word + (" or none" if self.optional else "")

    def read(self, value: Any) -> Any:
        """A value of a recipe, which writes "none" for None: TOML has no null."""
        return None if self.optional and isinstance(value, str) and value == "none" and "none" not in self.choices else value

    def check(self, value: Any, owner: str) -> Any:
        """The value, converted if that loses nothing; otherwise an error that says what is allowed."""
        value = self.read(value)
        if value is None and self.optional:
            return None
        if self.choices:
            if isinstance(value, str) and value not in self.choices:
                raise unknown_name(f"{owner} option {self.name}", value, map(str, self.choices))
            good = value in self.choices
        elif self.type in (float, int):
            good = self._is_number(value)
        else:
            good = self._fits(value)
        if not good:
            raise TurnwiseError(f"{owner}: option {self.name} takes {self.kind}, not {value!r}")
        return value if self.choices or self.type is object else self.type(value)

    def _fits(self, value: Any) -> bool:
        if self.type is bool:
            return isinstance(value, bool) or type(value).__name__ == "bool"
        if self.type in (list, tuple):
            return isinstance(value, list | tuple)
        return isinstance(value, Mapping if self.type is dict else self.type)

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
    """A registered function or class.

    summary   its meaning in one line; paper: where it comes from
    options   by name
    parts     what a credit function is the sum of, each with the option that weighs it, or None if it is the whole credit (see
              `turnwise/credit/registry.py`)
    needs     what must be available before it can run: columns (`token.entropy`), models (`model.teacher`), data of tasks (`task.answer`),
              capabilities of the environment (`env.snapshot`), several attempts at each task (`group.peers`). An option's name in braces
              stands for its value: `{level}.value`. What else follows from options is told by `needs_of(options)`, an attribute of the
              function or a static method of the class
    gives     the columns that it adds
    open      it takes any further options (`**options`) and checks them itself
    notes     further words for lists, of a method: what it `changes`, what it `costs`, what is the `evidence` for its formula
    former    options that are gone: the value that changes nothing, which records of runs hold, and what to do instead of another
    """

    name: str
    function: F
    summary: str
    paper: str
    options: Mapping[str, Option]
    parts: Mapping[str, str | None] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    open: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    former: Mapping[str, tuple[Any, str]] = field(default_factory=dict)

    def bind(self, given: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Checked options, defaults filled in."""
        owner = f"{kind} {self.name!r}"
        for name in given:
            if name not in self.options and not self.open:
                harmless, instead = self.former.get(name, (None, ""))
                if instead and given[name] == harmless:
                    continue
                if instead:
                    raise TurnwiseError(f"{owner} has no option {name!r} any more: {instead}")
                raise unknown_name(f"option of {owner}:", name, self.options)
        missing = [name for name, option in self.options.items() if option.required and name not in given]
        if missing:
            raise TurnwiseError(f"{owner} needs the option {missing[0]!r} ({self.options[missing[0]].kind})")
        bound = {name: option.check(given[name], owner) if name in given else option.usual for name, option in self.options.items()}
        return bound | {name: value for name, value in given.items() if name not in self.options and name not in self.former}

    def needed(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """What it needs with these options."""
        values = dict(given) | {name: option.read(given.get(name, option.default)) for name, option in self.options.items()}
        further = getattr(self.function, "needs_of", None)
        return tuple(need.format_map(values) for need in self.needs) + tuple(further(values) if further is not None else ())

    def make(self, given: Mapping[str, Any], kind: str) -> Callable[..., Any]:
        """The function with its options bound, or an object of the class, made with them."""
        bound = self.bind(given, kind)
        return self.function(**bound) if isinstance(self.function, type) else partial(self.function, **bound)


class Registry(Generic[F]):
    """Names to functions and classes. `kind` is the word for them in messages; `load` imports the files that register the built-in ones;
    `code` is the kind of a component that is named as `package.module:name` or `path/to/file.py:name`, None if that is not allowed.
    `first`: options are all parameters after this many, and not only the keyword-only ones."""

    def __init__(self, kind: str, load: Callable[[], None] = lambda: None, code: Kind | None = None, first: int | None = None):
        self.kind = kind
        self.code = code
        self._first = first
        self._load: Callable[[], None] | None = load
        self._entries: dict[str, Entry[F]] = {}
        self._own: dict[str, Entry[F]] = {}  # by the text that names their code

    def register(
        self,
        name: str,
        *,
        paper: str = "",
        parts: Mapping[str, str | None] | None = None,
        needs: Sequence[str] = (),
        gives: Sequence[str] = (),
        changes: str = "",
        costs: str = "",
        evidence: str = "",
        further: Mapping[str, Option] | None = None,
        former: Mapping[str, tuple[Any, str]] | None = None,
    ) -> Callable[[F], F]:
        """Decorator: registers a function or a class under `name`. The first sentence of its docstring is its description in lists;
        `needs` and `gives` name what it reads and what it adds. For a method: what it `changes`, what it `costs` in forward passes and
        rollouts, and the `evidence` for its formula (code, paper, notes). `further` are options that its signature does not have, `former`
        those that it had."""
        if is_reference(name) or not name.strip():
            raise TurnwiseError(f"a {self.kind} cannot be called {name!r}: a name has letters and no ':' or '.py'")

        def add(function: F) -> F:
            known = self._entries.get(name)
            # the same definition again (a reloaded module, a notebook cell run twice) replaces the old one; another one is a conflict
            if known is not None and known.function.__qualname__ != function.__qualname__:
                raise TurnwiseError(f"{self.kind} {name!r} is already registered, by {known.function.__module__}")
            made = self._entry(name, function, needs, gives)
            if not made.summary:
                raise TurnwiseError(f"{self.kind} {name!r} needs a docstring: its first sentence is what users see in lists")
            notes = {"changes": changes, "costs": costs, "evidence": evidence}
            self._entries[name] = replace(
                made,
                paper=paper,
                options={**made.options, **(further or {})},
                parts=dict(parts or {}),
                notes={word: text for word, text in notes.items() if text},
                former=dict(former or {}),
            )
            return function

        return add

    def load(self, name: str) -> Entry[F]:
        """The entry of a name; code that is named is imported, again if its file has changed."""
        if not is_reference(name) or self.code is None:
            return self[name]
        self._ready()
        self._own[name] = found = self._declared(name, load_reference(name, self.code))
        return found

    def of(self, named: str | F) -> Entry[F]:
        """The entry of a name, or of a function that is given itself."""
        if isinstance(named, str):
            return self[named]
        if not callable(named):
            raise TurnwiseError(f"a {self.kind} is a name or a function, not {type(named).__name__}")
        return self._declared(getattr(named, "__name__", type(named).__name__), named)

    def registered(self, function: Any) -> Entry[F] | None:
        """The entry of a function, if it has been registered; nothing is imported for it."""
        return next((entry for entry in self._entries.values() if entry.function is function), None)

    def _declared(self, name: str, target: F) -> Entry[F]:
        registered = self.registered(target)
        if registered is not None:  # it declares itself what it needs, gives and is the sum of
            return replace(registered, name=name)
        found = self._entry(name, target, getattr(target, "needs", ()), getattr(target, "gives", ()))
        return found if found.summary else replace(found, summary=f"a {self.kind} of your own ({name})")

    def known(self, name: str) -> Entry[F] | None:
        """The entry of a name if it is already known; no code of the user's own is imported for it."""
        entries = self._ready()
        if name not in entries and name not in self._own and not is_reference(name):
            plugins.load_folders()
        if name not in entries and addons.RENAMED.get(name) in entries:
            deprecated(f"the {self.kind} {name}", name := addons.RENAMED[name])
        return entries.get(name) or self._own.get(name)

    def _entry(self, name: str, function: F, needs: Sequence[str], gives: Sequence[str]) -> Entry[F]:
        doc = inspect.getdoc(function) or "" if not isinstance(function, type) or function.__doc__ else ""
        summary = " ".join(doc.split("\n\n")[0].split())
        for what, listed in (("needs", needs), ("gives", gives)):
            if isinstance(listed, str) or not all(isinstance(one, str) for one in listed):
                raise TurnwiseError(f'{self.kind} {name!r}: {what} is a list of texts, as in {what}=("token.entropy",)')
        takes_any = any(p.kind is p.VAR_KEYWORD for p in _parameters(function).values())
        options = read_options(function, self._first)
        return Entry(name, function, summary, "", options, needs=tuple(needs), gives=tuple(gives), open=takes_any)

    def _ready(self) -> dict[str, Entry[F]]:
        if self._load is not None:
            load, self._load = self._load, None
            load()
        plugins.load()
        return self._entries

    def __getitem__(self, name: str) -> Entry[F]:
        found = self.known(name)
        if found is not None:
            return found
        if self.code is not None and is_reference(name):
            return self.load(name)
        raise addons.unregistered(self.kind, str(name)) or unknown_name(self.kind, str(name), self._entries)

    def __iter__(self) -> Iterator[Entry[F]]:
        return iter([self._entries[name] for name in self.names()])

    def __contains__(self, name: object) -> bool:
        return self.known(str(name)) is not None

    def names(self) -> list[str]:
        """All registered names, sorted."""
        self._ready()
        plugins.load_folders()
        return sorted(self._entries)


def read_options(function: Callable[..., Any], first: int | None = None) -> dict[str, Option]:
    """The keyword-only parameters of a function, or of a class's `__init__`, as options; with `first`, all parameters after this many."""
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    kinds = (
        (inspect.Parameter.KEYWORD_ONLY,) if first is None else (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    )
    parameters = {name: p for name, p in list(_parameters(function).items())[first or 0 :] if p.kind in kinds}
    own = inspect.getattr_static(inner, "__init__") if isinstance(inner, type) else inner
    hints: dict[str, Any] = {}
    for owner in (*(reversed(inner.__mro__) if isinstance(inner, type) and is_dataclass(inner) else ()), own):
        hints |= _hints(owner, parameters)  # a field of a dataclass means what it means where it is declared
    return {name: _read_option(name, hints.get(name), p.default) for name, p in parameters.items()}


def _hints(function: Any, options: Collection[str]) -> dict[str, Any]:
    """The annotations of the options. Those of other parameters are not read: they may name types that only a type checker imports."""
    annotations = {name: hint for name, hint in inspect.get_annotations(function).items() if name in options}
    names = vars(sys.modules[function.__module__]) if isinstance(function, type) else getattr(function, "__globals__", {})
    try:
        return get_type_hints(SimpleNamespace(__annotations__=annotations), names, include_extras=True)
    except Exception:  # an annotation that cannot be read here: defaults determine the type
        return {}


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return {}


def _read_option(name: str, hint: Any, default: Any) -> Option:
    help_ = Help("")
    if hint is None:
        hint = Any if default is None or default is REQUIRED else type(default)
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        help_ = next((note for note in notes if isinstance(note, Help)), help_)
    optional = default is None
    if get_origin(hint) in (Union, UnionType):
        inner = [part for part in get_args(hint) if part is not NoneType]
        optional = optional or len(inner) < len(get_args(hint))
        hint = inner[0] if len(inner) == 1 else float if set(inner) == {int, float} else Any
    if get_origin(hint) is Literal:
        return Option(name, str, default, help_, choices=get_args(hint), optional=optional)
    bare = get_origin(hint) or hint
    return Option(name, _PLAIN.get(bare, object), default, help_, optional=optional)


_PLAIN: Mapping[Any, type] = {kind: kind for kind in WORDS} | {Sequence: list, Mapping: dict}


def mistaken(value: Any, annotation: Any) -> str:
    """What is wrong with a value that would be converted silently: a boolean instead of a number, or a number instead of a boolean. Empty
    if nothing is wrong. Lists are checked entry by entry. An annotation may be text, as in a signature."""
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
        return f"{'an integer' if float not in numbers else 'a number'} is needed, not {str(value).lower()}"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if switch and not numbers and (is_number or value in ("0", "1")):
        return f"true or false is needed, not {value}"
    return ""
