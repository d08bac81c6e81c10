"""Classes and functions that were passed as objects, from a script or a notebook's cell, while a recipe has only texts.

What another process can import is written into the recipe by its name (`package.module:Class`) and nothing else is needed. What it cannot
import (a class of `__main__`, a lambda, a function inside a function) gets the name `python:MyEnv`: it stands for the object of this
process, and nothing is ever imported for it. The run's folder describes each in `objects/`: its kind, its full name, and its source if
Python knows it. The source is there to be read; it is never executed.
"""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically
from turnwise.util.syntax import undisturbed

PREFIX = "python:"
FOLDER = "objects"
_given: dict[str, Any] = {}  # by name: the last object that was passed under it, for the lifetime of this process


def is_given(name: str) -> bool:
    """Whether a name stands for an object that was passed in."""
    return name.startswith(PREFIX)


def find(reference: str) -> Any:
    """The object that a name `python:…` stands for here; an error that says what to do if this process does not have it."""
    name = reference.removeprefix(PREFIX)
    if name not in _given:
        raise TurnwiseError(
            f"{reference} was handed in as a Python object (from a script or a notebook) and cannot be imported here. From Python, hand it "
            f"in again: tw.train(resume=RUN, env={name}) or tw.evaluate(RUN, env={name}); functions as reward= or credit=. For the shell, "
            f"put it into a file and name that: --env my_file.py:{name}. What it was is kept in {FOLDER}/ of the run"
        )
    return _given[name]


def present(given: Mapping[str, Any]) -> None:
    """Make objects of another process known here, by the names `python:…` that stand for them."""
    _given.update({name.removeprefix(PREFIX): value for name, value in given.items()})


def put_back(values: Any) -> Any:
    """Plain values with every name `python:…` in them replaced by its object: what an environment gets as its options."""
    if isinstance(values, str):
        return find(values) if is_given(values) else values
    if isinstance(values, Mapping):
        return {key: put_back(value) for key, value in values.items()}
    return [put_back(value) for value in values] if isinstance(values, list | tuple) else values


class Handed:
    """The objects of one call. `name` gives the text that stands for an object in the recipe; `present` makes them known."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}

    def name(self, given: Any, importable: bool = True, called: str | None = None) -> str:
        """`package.module:Class` if any process can import it (and that is wanted), otherwise `python:NAME`."""
        reference = import_name(given) if importable else None
        if reference is not None:
            return reference
        own = called or short_name(given)
        for number in range(1, len(self.objects) + 2):
            name = own if number == 1 else f"{own}-{number}"
            if self.objects.setdefault(name, given) is given:
                break
        _given[name] = given
        return f"{PREFIX}{name}"

    def plain(self, values: Any, inside: tuple[str, ...] = ()) -> Any:
        """Values of a recipe with every object in them replaced by its name. Options of an environment get the object itself back, so
        there even an importable one keeps the name that stands for the object."""
        if callable(values):
            return self.name(values, importable=inside[:2] != ("env", "options"))
        if isinstance(values, Mapping):
            return {key: self.plain(value, (*inside, *str(key).split("."))) for key, value in values.items()}
        return [self.plain(value, inside) for value in values] if isinstance(values, list | tuple) else values


def import_name(given: Any) -> str | None:
    """`package.module:Name` if importing that gives this same object; None for what only this process has."""
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or module.startswith("turnwise_file_"):
        return None
    target: Any = sys.modules.get(module)
    if getattr(target, "__spec__", None) is None:  # created at run time: no other process will find it
        return None
    for part in name.split("."):
        target = getattr(target, part, None)
    return f"{module}:{name}" if target is given else None


def short_name(given: Any) -> str:
    """The name of an object, if it has one."""
    while isinstance(given, partial):
        given = given.func
    name = getattr(given, "__name__", None) or type(given).__name__
    return re.sub(r"\W+", "_", str(name)).strip("_") or "object"


def keep_objects(folder: Path, values: Any, say: Callable[[str], None] = lambda text: None, write: bool = True) -> None:
    """Write descriptions of the objects that a recipe's values name into the run's folder, once; if they were different before, warn about
    it."""
    for reference in sorted(set(names_in(values))):
        if not write and reference.removeprefix(PREFIX) not in _given:
            continue  # reported where it is needed
        given = find(reference)
        path = folder / FOLDER / f"{reference.removeprefix(PREFIX)}{'.jsonl' if isinstance(given, list) else '.py'}"
        text = rows(given) if isinstance(given, list) else description(reference, given)
        known = path.read_text(encoding="utf-8") if path.is_file() else None
        if known is None and write:
            path.parent.mkdir(exist_ok=True)
            write_text_atomically(path, text)
        elif known is not None and known != text:
            say(f"warning: {reference} is not what it was when the run began ({path} shows that one); the new one is used")


def names_in(values: Any) -> list[str]:
    """Every name `python:…` in plain values."""
    if isinstance(values, str):
        return [values] if is_given(values) else []
    inner = values.values() if isinstance(values, Mapping) else values if isinstance(values, list | tuple) else ()
    return [name for value in inner for name in names_in(value)]


def objects_in(values: Any) -> dict[str, Any]:
    """The objects that plain values name; an error if this process does not have one of them."""
    return {name: find(name) for name in names_in(values)}


def rows(given: list[Any]) -> str:
    """Data that was passed in, one line of JSON per entry."""
    try:
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in given)
    except (TypeError, ValueError) as error:
        raise TurnwiseError(f"prompts that are handed in must be plain JSON values (text, numbers, lists, dicts): {error}") from None


def description(reference: str, given: Any) -> str:
    """The description of an object as a file: a few lines of comment, then its source if it is known."""
    inner = given
    while isinstance(inner, partial):
        inner = inner.func
    kind = "class" if isinstance(inner, type) else "function" if isinstance(inner, FunctionType) else f"object of {type(inner).__name__}"
    full = f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    lines = [f"# {reference} was handed in as an object: {kind} {full}"]
    if inner is not given:
        lines.append(f"# with arguments bound to it: {' '.join(repr(given).split())[:500]}")
    source = source_of(inner)
    if source is None:
        return "\n".join([*lines, "# Its source is not available.", ""])
    lines += ["# Its source, for reading; what it uses from around it is not here.", ""]
    return "\n".join([*lines, source.rstrip(), ""])


def source_of(given: Any) -> str | None:
    """The source text of a class or function; None if Python does not know it."""
    given = given if isinstance(given, type | FunctionType) else type(given)
    try:
        return textwrap.dedent(undisturbed(lambda: inspect.getsource(given)))
    except (OSError, TypeError, IndentationError):
        return _source_of_cell(given) if isinstance(given, type) else None


def _source_of_cell(given: type) -> str | None:
    """The source of a class from a notebook: its module has no file, but its methods know the cell they come from."""
    for member in vars(given).values():
        code = getattr(getattr(member, "__func__", member), "__code__", None)
        lines = linecache.getlines(code.co_filename) if code is not None else []
        try:
            tree = undisturbed(partial(ast.parse, "".join(lines)))
            nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == given.__name__]
        except SyntaxError:
            continue
        for node in reversed(nodes):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if code is not None and first <= code.co_firstlineno <= (node.end_lineno or 0):
                return textwrap.dedent("".join(lines[first - 1 : node.end_lineno]))
    return None
