"""`turnwise algos`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from turnwise.util.terminal import say


def algos(
    name: Annotated[
        str | None, typer.Argument(metavar="[KIND] [NAME]", help="A kind (credit, plan, engine …), a name, or file.py:name.")
    ] = None,
    second: Annotated[str | None, typer.Argument(hidden=True)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List all that a recipe can name: credit, objectives, plans, signals, contexts, engines … with meaning, options and papers."""
    from turnwise.report import algorithms
    from turnwise.util.console import Console

    if as_json:
        say(json.dumps(algorithms.describe(name, second), indent=2))
    else:
        algorithms.show(Console(), name, second)
