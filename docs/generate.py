"""The reference pages that are made from the code: recipe keys, commands, the Python API.

python docs/generate.py          # write them into docs/reference, as `make docs` does
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

import turnwise
from turnwise.cli.app import app
from turnwise.recipe.schema import fields
from turnwise.recipe.writing import toml_value
from turnwise.util.files import write_text_atomically


def write_reference(folder: Path) -> None:
    """Write the generated pages; a page that has not changed keeps its time, so that nothing is built twice."""
    folder.mkdir(exist_ok=True)
    for name, lines in {"recipe": recipe_page(), "cli": cli_page(), "python": python_page()}.items():
        page, text = folder / f"{name}.md", "\n".join(lines) + "\n"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            write_text_atomically(page, text)


def recipe_page() -> Iterator[str]:
    """Every key of a recipe, by section: an entry each, which the search finds by its name."""
    sections = [(dotted, field, inner) for dotted, field, inner in fields() if inner is not None]
    yield "# Recipe keys\n\nLook up what a recipe can set: each key with its type, its default and its meaning. On a command line, write "
    yield "`key=value`. `turnwise train --help-config` prints the same, and [Recipes](../guides/recipes.md) explains how to change one.\n"
    yield " · ".join(["[top level](#top-level)", *(f"[`{dotted}`](#{_slug(dotted)})" for dotted, _, _ in sections)])
    yield "\n## Top level\n\nKeys that stand above the first section."
    for dotted, field, inner in fields():
        if inner is not None:
            optional = " This section is optional." if field.default is None or field.default == [] else ""
            yield f"\n## `[{dotted}]`\n\n{_line(inner.__doc__ or '')}{optional}"
            continue
        default = "required" if field.is_required() else "none" if field.default is None else f"`{toml_value(field.default)}`"
        yield from _directive(f"confval}} {dotted}", _line(field.description or ""), type=_type(field.annotation), default=default)


def _slug(text: str) -> str:
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


WORDS = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "NoneType": "none", "dict": "table", "list": "list"}


def _type(annotation: Any) -> str:
    """What a key takes, in the words of a recipe: `"auto"`, `"cpu"` or `"cuda"`; integer or none; list of texts."""
    kind, inner = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return _type(inner[0])
    if kind is Literal:
        return _either([f"`{toml_value(value)}`" for value in inner])
    if kind in (Union, UnionType):
        return _either([_type(one) for one in inner])
    if kind is list:
        return f"list of {_type(inner[0])}s"
    if kind is tuple:
        return f"{len(inner)} {_type(inner[0])}s"
    name = getattr(kind or annotation, "__name__", str(annotation))
    return WORDS.get(name, name)


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _directive(head: str, text: str, **options: str) -> Iterator[str]:
    """A directive of Sphinx as a fence; a text may hold fences of three."""
    yield f"\n`````{{{head}"
    yield from (f":{name}: {value}" for name, value in options.items())
    yield f"\n{text}\n`````"


def cli_page() -> Iterator[str]:
    """Every command with its arguments and options."""
    commands = list(_commands(typer.main.get_command(app), "turnwise"))
    yield "# Commands\n\nLook up a command with its arguments and options. `turnwise COMMAND --help` prints the same.\n"
    yield "| to … | command |\n|---|---|"
    for title, names in COMMANDS.items():
        listed = [path for path, _ in commands if path.split()[1] in names]
        yield f"| {title} | {', '.join(f'[`{path}`](#{_slug(path)})' for path in listed)} |"
    left = [path for path, _ in commands if not any(path.split()[1] in names for names in COMMANDS.values())]
    if left:
        yield f"| other | {', '.join(f'[`{path}`](#{_slug(path)})' for path in left)} |"
    for path, command in commands:
        yield f"\n## `{path}`\n\n{(command.help or '').strip()}\n\n```{{program}} {path}\n```"
        for one in command.params:
            if not getattr(one, "hidden", False) and one.name != "help":
                yield from _directive(*_parameter(one))


COMMANDS = {
    "start": ("doctor", "recipes", "new", "envs", "play"),
    "find a name": ("algos", "methods"),
    "train": ("train", "sft", "sweep", "cluster", "fit"),
    "evaluate, compare": ("eval", "compare", "lab", "replay"),
    "look": ("view", "report", "trajectories", "diagnose"),
    "use a model": ("serve", "export"),
}


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield path, command
    for name, one in inner.items():
        yield from _commands(one, f"{path} {name}")


def _parameter(one: Any) -> tuple[str, str]:
    option = one.opts[0].startswith("-")
    names = [*one.opts, *one.secondary_opts] if option else [(one.metavar or one.name.upper()).replace(" ", "")]
    value = f" {one.metavar or one.type_descriptor.annotation.__name__.upper()}" if option and not getattr(one, "is_flag", False) else ""
    default = (
        ""
        if one.default in (None, False, (), []) or callable(one.default)
        else " Default: on."
        if one.default is True
        else f" Default: `{one.default}`."
    )
    return f"option}} {', '.join(name + value for name in names)}", _line(one.help or "") + default


def python_page() -> Iterator[str]:
    """The public names of the package, with their signatures and docstrings, by what they are for."""
    yield "# Python\n\nLook up what `import turnwise as tw` gives. [Versions](../versions.md) says what is stable."
    public = {name: getattr(turnwise, name) for name in turnwise.__all__ if not isinstance(getattr(turnwise, name), str)}
    modules = {name: value for name, value in public.items() if inspect.ismodule(value) and name != "train"}

    def place(name: str) -> int:
        return FIRST.index(name) if name in FIRST else len(FIRST)

    for title, rooms in ROOMS.items():
        yield f"\n## {title}"
        for name, value in sorted(public.items(), key=lambda item: (inspect.isclass(item[1]), place(item[0]))):
            if name not in modules and _room(value) in rooms:
                yield from _described(f"tw.{name}", value)
    for name, value in modules.items():
        yield f"\n## `tw.{name}`\n\n{_docstring(value)}"
        for inner in value.__all__:
            yield from _described(f"tw.{name}.{inner}", getattr(value, inner))


FIRST = ("train", "evaluate", "compare", "export", "make", "tasks", "Env", "Observation", "Transition")
ROOMS = {
    "Train and evaluate": ("api", "train", "recipe", "collect", "report", "runs.folder", "util"),
    "Environments and tasks": ("envs", "data.tasks"),
    "Trajectories": ("data.rollouts", "runs.exchange"),
}


def _room(value: Any) -> str:
    """The first of the rooms above in which a name is defined; a name elsewhere is an error: it would be missing on the page."""
    module = (value.__name__ if inspect.ismodule(value) else value.__module__).removeprefix("turnwise.")
    module = "train" if module == "turnwise" else module
    found = [room for rooms in ROOMS.values() for room in rooms if f"{module}.".startswith(f"{room}.")]
    if not found:
        raise LookupError(f"docs/generate.py: ROOMS has no place for turnwise.{module}")
    return found[0]


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """The documented methods of a class; a recipe's keys have a page of their own."""
    if inspect.isclass(value) and not issubclass(value, turnwise.Recipe):
        for name, one in vars(value).items():
            function = one.__func__ if isinstance(one, classmethod | staticmethod) else one
            if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
                yield name, function


def _described(name: str, value: Any) -> Iterator[str]:
    """A class with its methods, a function, or a value, as an entry that the search finds by its name."""
    kind = "exception" if inspect.isclass(value) and issubclass(value, Exception) else "class" if inspect.isclass(value) else "function"
    if not callable(value):
        yield from _directive(f"py:data}} {name}", _docstring(value) if inspect.getdoc(value) != inspect.getdoc(type(value)) else "")
        return
    plain = kind == "exception" or (inspect.isclass(value) and issubclass(value, turnwise.Recipe | Enum))
    yield from _directive(f"py:{kind}}} {name}{'' if plain else _signature(value)}", _docstring(value))
    for inner, one in _members(value):
        yield from _directive(f"py:method}} {name}.{inner}{_signature(one)}", _docstring(one))


def _signature(value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except ValueError:
        return "()"
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", re.sub(r"^\((self|cls)(, )?", "(", text))
    return re.sub(r"<factory>|<[^<>]* object at 0x[0-9a-f]+>", "...", text).removesuffix(" -> None")


def _docstring(value: Any) -> str:
    """Prose as prose; tables and examples of a docstring, which are aligned for the eye, as they are."""
    blocks = (inspect.getdoc(value) or "").split("\n\n")
    aligned = re.compile(r"(?m)^( {2,}\S|>>>)|\S {3,}\S")
    return "\n\n".join(f"```text\n{block}\n```" if aligned.search(block) else _linked(block) for block in blocks)


def _line(text: str) -> str:
    return _linked(" ".join(text.split()))


def _linked(text: str) -> str:
    """A page that a text names by its path becomes a link with the page's title."""
    docs = Path(__file__).parent

    def link(path: re.Match[str]) -> str:
        page = docs / path[1]
        return f"[{page.read_text(encoding='utf-8').splitlines()[0].removeprefix('# ')}](../{path[1]})" if page.exists() else path[0]

    return re.sub(r"\bdocs/([a-z]+/[\w-]+\.md)", link, text)


if __name__ == "__main__":
    write_reference(Path(__file__).parent / "reference")
