"""`turnwise methods`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from turnwise.util.terminal import say


def methods(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]…", help="Only methods that mention all of these: credit, plan, expert, 'costs: nothing', 2505.10978 …"
        ),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Leave out methods that mention this: critic, model, rollouts …; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find a published method by what it changes, needs and costs."""
    from turnwise.report.algorithms import describe, show_methods
    from turnwise.setup.catalogue import found_methods
    from turnwise.util.console import Console

    found = found_methods(words or (), without or ())
    if as_json:
        names = {entry.name for entry in found}
        say(json.dumps([row for row in describe("method") if row["name"] in names], indent=2))
    else:
        show_methods(Console(), found, in_full=bool(words or without))
