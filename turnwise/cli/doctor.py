"""`turnwise doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from turnwise.util.terminal import say


def doctor(
    report: Annotated[bool, typer.Option("--report", help="Print Markdown to paste into an issue: no secrets, no user names.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    test: Annotated[bool, typer.Option(help="Train a tiny model for one iteration, about 20 seconds.")] = True,
) -> None:
    """Show what this machine has and what is missing for what, and test whether training works here."""
    from rich.text import Text

    from turnwise.setup.doctor import Finding, examine, healthy
    from turnwise.setup.doctor import report as as_markdown
    from turnwise.util.console import Console

    console = Console(stderr=report or as_json)

    def show(part: str, rows: list[Finding]) -> None:
        console.print(Text(part, style="bold"))
        for row in rows:
            mark, style = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("·", "dim")}[row.good]
            console.print(Text.assemble((f"  {mark} ", style), f"{row.what}: {row.value}"))
            if row.remedy and row.good is not True:
                console.print(Text(f"      {row.remedy}", style="yellow"), soft_wrap=True)

    findings = {}
    with console.status("") as status:
        for part, rows in examine(test, lambda part: status.update(Text(f"looking at: {part}"))):
            findings[part] = rows
            if not (report or as_json):
                show(part, rows)
    if as_json:
        say(json.dumps({part: [asdict(row) for row in rows] for part, rows in findings.items()}, indent=2))
    elif report:
        say(as_markdown(findings))
    well = healthy(findings)
    if not (report or as_json):
        say("Training works on this machine." if well else "Something that every run needs is wrong: see ✗ above.")
    raise typer.Exit(0 if well else 1)
