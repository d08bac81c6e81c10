"""All that a recipe can name, as tables: what `turnwise algos` prints."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from turnwise.config.options import Entry, Option
from turnwise.recipe.writing import toml_value
from turnwise.setup.catalogue import FAMILIES, authors_of, chosen, entries, facts_of, needs_of, nothing, page_of, settings_of
from turnwise.util.console import Console
from turnwise.util.terminal import command


def describe(name: str | None = None, second: str | None = None) -> list[dict[str, Any]]:
    """The same as plain data, for machines."""
    return [
        {
            "family": family,
            "name": entry.name,
            "meaning": entry.summary,
            "paper": entry.paper,
            "needs": list(entry.needs),
            "gives": list(entry.gives),
            "parts": list(entry.parts),
            "options": {option.name: _plain(option) for option in entry.options.values()},
            **entry.notes,
            **({"settings": settings_of(entry), "authors": authors_of(entry)} if family == "method" else {}),
            **({"needs_of_pieces": needs_of(entry)} if family == "method" else {}),
        }
        for family, entry in chosen(name, second)
    ]


def show(console: Console, name: str | None = None, second: str | None = None) -> None:
    """Print one component in full, one family with its options, or the names of all."""
    if name is not None and (second is not None or name not in FAMILIES):
        for family, entry in chosen(name, second):
            console.print(_details(family, entry))
        return
    for family in [name] if name else FAMILIES:
        console.print(Text.assemble((family.capitalize(), "bold"), f": {FAMILIES[family]}"))
        names = Text("  ".join(entry.name for entry in entries(family)) or "none yet", style="cyan")
        console.print(Group("", *_paragraphs(family)) if name else Padding(names, (0, 0, 1, 2)))
    own = "your own file: file.py:name. Formulas and advice: docs/methods, docs/guides/credit.md, docs/guides/objectives.md."
    words = ((f"{command('algos')} KIND", "bold"), ", ", (f"{command('algos')} NAME", "bold"))
    console.print(Text.assemble("More: ", *words, f"; a name can also be {own}"))


def show_methods(console: Console, listed: list[Entry[Any]], in_full: bool) -> None:
    """Methods, a line each; in full with what each one changes, needs and costs."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold cyan")
    for entry in listed:
        if in_full:
            console.print(Text.assemble((entry.name, "bold cyan"), f"  {entry.summary}"))
            console.print(Padding(Text("\n".join(facts_of(entry)), style="dim"), (0, 0, 1, 4)))
        else:
            table.add_row(entry.name, Text(entry.summary))
    if not in_full:
        console.print(table)
        words = (
            (f"{command('methods')} WORD", "bold"),
            ", such as critic, plan, 'costs: nothing' or 2505.10978; --without WORD leaves out.",
        )
        console.print(Text.assemble("\nWhat methods change, need and cost: ", *words))
    console.print(Text(f"{len(listed)} methods. One in full: {command('algos', 'method', 'NAME')}. Train with it: method.name=NAME."))


def _plain(option: Option) -> dict[str, Any]:
    default = None if option.required else option.default
    plain = default if isinstance(default, int | float | str | bool | list | dict | None) else str(default)
    return {"takes": option.kind, "default": plain, "required": option.required, "meaning": option.help.text}


def _paragraphs(family: str) -> Iterator[Any]:
    """A short paragraph per component: it is readable at any width, unlike a table of four columns."""
    for entry in entries(family):
        options = ", ".join(f"{option.name}={_word(option)}" for option in entry.options.values())
        yield Text.assemble("  ", (entry.name, "bold cyan"))
        lines = [
            (entry.summary, ""),
            (options or "no options", "dim"),
            *((line, "dim") for line in _facts(entry)),
            (entry.paper, "dim italic"),
        ]
        for line, style in lines:
            if line:
                yield Padding(Text(line, style=style), (0, 0, 0, 6))
        yield ""


def _details(family: str, entry: Entry[Any]) -> Panel:
    table = Table(show_header=True, box=None, padding=(0, 2, 0, 0))
    for title in ("option", "takes", "default", "meaning"):
        table.add_column(title, overflow="fold")
    for option in entry.options.values():
        table.add_row(option.name, Text(option.kind), _word(option), Text(option.help.text))
    module = inspect.getmodule(entry.function)
    notes = Text(_flowing(module.__doc__ or "") if module is not None and entry.function is not nothing else "")
    lines = [
        *_facts(entry),
        *(_brought(entry) if family == "method" else []),
        *([f"Paper: {entry.paper}"] if entry.paper else []),
    ]
    parts = [Text(entry.summary), "", notes, "", table if entry.options else "No options.", "", *map(Text, lines)]
    return Panel(Group(*parts), title=Text(f"{family}: {entry.name}"))


def _flowing(text: str) -> str:
    """Paragraphs of a docstring as one line each, for a terminal of any width; formulas and lists keep their lines."""
    return re.sub(r"(?m)^(\S.*)\n(?=[^\s-])", r"\1 ", text.strip())


def _facts(entry: Entry[Any]) -> list[str]:
    """What a component needs and gives; what a method changes, costs, and how sure its formula is."""
    asked = [f"{word}: {', '.join(names)}" for word, names in (("Needs", entry.needs), ("Gives", entry.gives)) if names]
    return asked + [f"{word.capitalize()}: {text}" for word, text in entry.notes.items()]


def _brought(entry: Entry[Any]) -> list[str]:
    """What a method sets, what its authors took for shared settings, what the pieces need that it names, and its page."""
    settings = [f"Sets: {key} = {toml_value(value)}" for key, value in settings_of(entry).items()]
    settings += [f"Sets if method.faithful: {key} = {toml_value(value)}" for key, value in authors_of(entry).items()]
    needs = [f"Needs of {who}: {', '.join(names)}" for who, names in needs_of(entry).items() if who != "method"]
    page = page_of(entry)
    return [*settings, *needs, *([f"Page: {page}"] if page is not None else [])]


def _word(option: Option) -> str:
    if option.required:
        return "required"
    return str(option.default).lower() if isinstance(option.default, (bool, type(None))) else str(option.default)
