"""`turnwise envs`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from turnwise.cli.shared import Options, parse_options
from turnwise.util.errors import TurnwiseError
from turnwise.util.terminal import only_results, say


def envs(
    name: Annotated[str | None, typer.Argument(help="Only this environment.")] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Check the rules of NAME; without NAME those of all environments. Scores: turnwise eval --agent scripted."
        ),
    ] = False,
    install: Annotated[bool, typer.Option("--install", help="Install with pip what NAME needs, and say what pip cannot install.")] = False,
    option: Options = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the environments, check them, or install what one of them needs.

    To check your own class: `turnwise envs --check my_env.py:MyEnv`."""
    from rich.text import Text

    from turnwise.envs import listing, registry
    from turnwise.envs.check import check as run_check
    from turnwise.envs.check import check_all
    from turnwise.util.console import Console

    if install:
        raise typer.Exit(_install(name))
    if check and name is None:
        with Console(stderr=True).status("") as status, only_results():
            rows = list(check_all(lambda env: status.update(Text(f"playing {env}"))))
        if as_json:
            say(json.dumps(rows, indent=2))
        else:
            Console().print(listing.contract_table(rows))
        raise typer.Exit(1 if any(row.get("contract") for row in rows) else 0)
    if check and name is not None:
        with only_results():
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


def _install(name: str | None) -> int:
    """The exit code: 1 if something is still missing."""
    from turnwise.envs.install import install

    if name is None:
        raise TurnwiseError("say which environment: turnwise envs --install NAME (`turnwise envs` lists them)")
    left = install(name, say)
    for line in left:
        say(line)
    say(f"{name} {'is not ready yet' if left else f'is ready: turnwise play {name}'}")
    return 1 if left else 0
