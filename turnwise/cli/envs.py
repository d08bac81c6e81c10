"""`turnwise envs`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from turnwise.cli.shared import Options, parse_options
from turnwise.util.terminal import say


def envs(
    name: Annotated[str | None, typer.Argument(help="Only this environment.")] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Check the rules of NAME; without NAME check all environments and report random, scripted and expert scores."
        ),
    ] = False,
    option: Options = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the environments, or check them.

    To check your own class: `turnwise envs --check my_env.py:MyEnv`."""
    from rich.text import Text

    from turnwise.envs import agents, listing, registry
    from turnwise.envs.check import check as run_check
    from turnwise.util.console import Console

    if check and name is None:
        with Console(stderr=True).status("") as status:
            rows = list(agents.compare_all(tell=lambda env: status.update(Text(f"playing {env}"))))
        if as_json:
            say(json.dumps(rows, indent=2))
        else:
            Console().print(listing.agents_table(rows))
        raise typer.Exit(1 if any(row.get("contract") for row in rows) else 0)
    if check and name is not None:
        report = run_check(name, **parse_options(option))
        if as_json:
            say(json.dumps(report.to_dict(), indent=2))
        else:
            listing.print_report(report, Console())
        raise typer.Exit(0 if report.ok else 1)
    rows = registry.describe(name)
    if as_json:
        say(json.dumps(rows, indent=2))
    else:
        listing.print_environments(rows, Console())
