"""The algorithms as tables: what `turnwise algos` prints."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from turnwise.config.options import Entry, Registry
from turnwise.util.console import Console
from turnwise.util.errors import unknown_name
from turnwise.util.terminal import command


def registries() -> dict[str, Registry[Any]]:
    """The two families: credit (who deserves what) and objectives (how the policy moves)."""
    from turnwise import credit, objectives

    return {"credit": credit.algorithms, "objective": objectives.algorithms}


def find(name: str) -> list[tuple[str, Entry[Any]]]:
    """The entries of that name, with their family; an error with the nearest name where there is none."""
    families = registries()
    found = [(family, registry[name]) for family, registry in families.items() if name in registry]
    if not found:
        raise unknown_name("algorithm", name, {known for registry in families.values() for known in registry.names()})
    return found


def describe(name: str | None = None) -> list[dict[str, Any]]:
    """Everything as plain data, for machines."""
    entries = find(name) if name else [(family, entry) for family, registry in registries().items() for entry in registry]
    return [
        {
            "family": family,
            "name": entry.name,
            "meaning": entry.summary,
            "paper": entry.paper,
            "options": {
                option.name: {"takes": option.kind, "default": option.default, "meaning": option.help.text}
                for option in entry.options.values()
            },
        }
        for family, entry in entries
    ]


def show(console: Console, name: str | None = None) -> None:
    """Print one algorithm in full, or all of them."""
    if name:
        for family, entry in find(name):
            console.print(_details(family, entry))
        return
    console.print(Text.assemble(("Credit", "bold"), ": who deserves what. A function from rollouts to one advantage per turn.\n"))
    console.print(_overview(registries()["credit"]))
    how = ": how the policy moves. A function from log-probabilities and advantages to a loss.\n"
    console.print(Text.assemble(("Objectives", "bold"), how))
    console.print(_overview(registries()["objective"]))
    where = ". Formulas and advice: docs/algorithms.md, docs/objectives.md."
    console.print(Text.assemble("More about one: ", (f"{command('algos')} NAME", "bold"), where))


def _overview(registry: Registry[Any]) -> Group:
    """A short paragraph an algorithm: it reads at any width, where a table of four columns does not."""
    lines: list[Any] = []
    for entry in registry:
        options = ", ".join(f"{option.name}={_word(option.default)}" for option in entry.options.values())
        lines.append(Text.assemble("  ", (entry.name, "bold cyan")))
        lines += [Padding(Text(line, style=style), (0, 0, 0, 6)) for line, style in ((entry.summary, ""), (options or "no options", "dim"))]
        lines.append(Padding(Text(entry.paper, style="dim italic"), (0, 0, 1, 6)))
    return Group(*lines)


def _details(family: str, entry: Entry[Any]) -> Panel:
    table = Table(show_header=True, box=None, padding=(0, 2, 0, 0))
    for title in ("option", "takes", "default", "meaning"):
        table.add_column(title, overflow="fold")
    for option in entry.options.values():
        table.add_row(option.name, Text(option.kind), _word(option.default), Text(option.help.text))
    notes = Text((entry.function.__globals__.get("__doc__") or "").strip())
    return Panel(Group(Text(entry.summary), "", notes, "", table, "", Text(f"Paper: {entry.paper}")), title=Text(f"{family}: {entry.name}"))


def _word(value: Any) -> str:
    return {True: "true", False: "false", None: "none"}.get(value, str(value)) if isinstance(value, (bool, type(None))) else str(value)
