"""All that a recipe can name, as tables: what `turnwise algos` prints. Nothing is listed by hand; the registries say it all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from turnwise.config.kinds import KINDS, Kind
from turnwise.config.loading import load_reference
from turnwise.config.options import Entry, Option, read_options
from turnwise.config.references import is_reference
from turnwise.setup.names import REGISTRIES, registry
from turnwise.util.console import Console
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.terminal import command

FAMILIES: Mapping[str, str] = {
    "credit": "who deserves what: from rollouts to advantages",
    "objective": "how the policy moves: from log-probabilities and advantages to a loss",
    "importance": "corrections for tokens that the learner's policy did not sample",
    "plan": "which attempts are made next",
    "signal": "columns that are added to a batch before credit",
    "schedule": "which parts of a batch make up which optimiser step",
    "method": "settings that belong together, under one name",
    "reward": "terms that are added to the environment's reward",
    "context": "how a turn's prompt is made from the past",
    "parser": "how a response becomes an action",
    "prompt": "templates of prompts",
    "engine": "what turns prompts into responses",
    "tracker": "where metrics go besides metrics.jsonl",
    "environment": "what is played; `turnwise envs` says more",
}


def entries(family: str) -> list[Entry[Any]]:
    """All that is registered in a family."""
    if family == "environment":
        from turnwise.envs.registry import describe as environments

        return [Entry(row["name"], _nothing, row["summary"] or row["error"], "", {}) for row in environments()]
    if family == "prompt":
        from turnwise.agent.prompts import NAMES, find_template

        return [Entry(name, _nothing, f"the template {find_template(name).name}", "", {}) for name in NAMES]
    return list(registry(family))


def find(name: str, family: str | None = None) -> list[tuple[str, Entry[Any]]]:
    """The entries of a name, with their families; an error with the nearest name if there are none."""
    if family is not None and family not in FAMILIES:
        raise unknown_name("kind", family, FAMILIES)
    if is_reference(name):
        family = family or _family_of(name)
        return [(family, _environment(name) if family == "environment" else registry(family).load(name))]
    listed = [(one, entry) for one in ([family] if family else FAMILIES) for entry in entries(one)]
    found = [(one, _environment(name) if one == "environment" else entry) for one, entry in listed if entry.name == name]
    if not found:
        raise unknown_name(family or "name", name, {entry.name for _, entry in listed} | (set() if family else set(FAMILIES)))
    return found


def chosen(name: str | None, second: str | None = None) -> list[tuple[str, Entry[Any]]]:
    """What `turnwise algos NAME`, `turnwise algos KIND` and `turnwise algos KIND NAME` mean; none: everything."""
    if name is not None and second is not None:
        return find(second, name)
    if name is None or name in FAMILIES:
        return [(family, entry) for family in ([name] if name else FAMILIES) for entry in entries(family)]
    return find(name)


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
        }
        for family, entry in chosen(name, second)
    ]


def show(console: Console, name: str | None = None, second: str | None = None) -> None:
    """Print one piece in full, one family with its options, or a line for each of all."""
    if name is not None and (second is not None or name not in FAMILIES):
        for family, entry in chosen(name, second):
            console.print(_details(family, entry))
        return
    for family in [name] if name else FAMILIES:
        console.print(Text.assemble((family.capitalize(), "bold"), f": {FAMILIES[family]}\n"))
        console.print(Group(*(_paragraphs(family) if name else _lines(family))))
    own = "a file of your own: file.py:name. Formulas and advice: docs/algorithms.md, docs/objectives.md."
    words = ((f"{command('algos')} KIND", "bold"), ", ", (f"{command('algos')} NAME", "bold"))
    console.print(Text.assemble("More: ", *words, f"; a name can also be {own}"))


def _family_of(reference: str) -> str:
    """What kind of piece a reference points to: as it is registered, else by what it looks like."""
    fits = []
    for family, kind in KINDS.items():
        try:
            target = load_reference(reference, kind)
        except TurnwiseError:
            continue
        if family in REGISTRIES and any(entry.function is target for entry in registry(family)):
            return family
        fits.append((_likeness(target, kind), family))
    best = [family for rank, family in fits if rank == max(fits)[0]]
    if len(best) == 1:
        return best[0]
    if not fits:
        load_reference(reference, KINDS["credit"])  # says what is wrong with it
    raise TurnwiseError(f"{reference} could be {' or '.join(best)}: say which, as in {command('algos', best[0], reference)}")


def _likeness(target: Any, kind: Kind) -> int:
    """How much something looks like a kind that it may be: its class has the methods, or its parameters have the names."""
    if isinstance(target, type):
        return 2 if kind.methods else 1
    named = tuple(inspect.signature(target).parameters)[: len(kind.takes)] == kind.takes
    return 0 if kind.methods or not kind.takes else 2 if named else 1


def _nothing() -> None:
    """Stands for what is listed and not loaded."""


def _environment(name: str) -> Entry[Any]:
    from turnwise.envs.registry import spec

    found = spec(name)
    made_by = found.load()
    summary = found.summary or " ".join((inspect.getdoc(made_by) or "").split("\n\n")[0].split())
    return Entry(name, made_by, summary, "", read_options(made_by, 0))


def _plain(option: Option) -> dict[str, Any]:
    default = None if option.required else option.default
    plain = default if isinstance(default, int | float | str | bool | list | dict | None) else str(default)
    return {"takes": option.kind, "default": plain, "required": option.required, "meaning": option.help.text}


def _lines(family: str) -> Iterator[Any]:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
    table.add_column(no_wrap=True, style="bold cyan")
    table.add_column(overflow="fold")
    listed = entries(family)
    for entry in listed:
        table.add_row(Text(entry.name), Text(entry.summary))
    yield table if listed else Text("  none yet", style="dim")
    yield ""


def _paragraphs(family: str) -> Iterator[Any]:
    """A short paragraph per piece: it reads at any width, where a table of four columns does not."""
    for entry in entries(family):
        options = ", ".join(f"{option.name}={_word(option)}" for option in entry.options.values())
        yield Text.assemble("  ", (entry.name, "bold cyan"))
        lines = [
            (entry.summary, ""),
            (options or "no options", "dim"),
            *((line, "dim") for line in _asked(entry)),
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
    notes = Text((module.__doc__ or "").strip() if module is not None and entry.function is not _nothing else "")
    lines = [*_asked(entry), *([f"Paper: {entry.paper}"] if entry.paper else [])]
    parts = [Text(entry.summary), "", notes, "", table if entry.options else "No options.", "", *map(Text, lines)]
    return Panel(Group(*parts), title=Text(f"{family}: {entry.name}"))


def _asked(entry: Entry[Any]) -> list[str]:
    """What a piece needs and gives, in words."""
    return [f"{word}: {', '.join(names)}" for word, names in (("Needs", entry.needs), ("Gives", entry.gives)) if names]


def _word(option: Option) -> str:
    if option.required:
        return "required"
    value = option.default
    return {True: "true", False: "false", None: "none"}.get(value, str(value)) if isinstance(value, (bool, type(None))) else str(value)
