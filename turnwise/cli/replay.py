"""`turnwise replay`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from turnwise.cli.shared import Trust
from turnwise.util.terminal import say


def replay(
    run: Annotated[str, typer.Argument(help="A run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Other settings, for example credit.name=hgpo.")
    ] = None,
    iteration: Annotated[int | None, typer.Option(min=1, help="The iteration. Default: the last one with stored rollouts.")] = None,
    also: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A further credit algorithm to compare; repeatable.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Number of turns to show, those that differ most first.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Compute an iteration's credit again with other settings, and compare.

    What would another algorithm have done with the same data?"""
    from turnwise.evaluation.replay import replay as run_again
    from turnwise.report.replaying import show
    from turnwise.util.console import Console

    found = run_again(run, iteration, overrides or [], also or [], top=top)
    if as_json:
        say(json.dumps(found, indent=2))
    else:
        show(Console(), found)
