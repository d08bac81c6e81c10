"""`turnwise algos`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from turnwise.util.terminal import say


def algos(
    name: Annotated[str | None, typer.Argument(help="Show only this algorithm, in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the algorithms with their meaning, options and papers."""
    from turnwise.report import algorithms
    from turnwise.util.console import Console

    if as_json:
        say(json.dumps(algorithms.describe(name), indent=2))
    else:
        algorithms.show(Console(), name)
