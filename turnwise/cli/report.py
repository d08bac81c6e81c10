"""`turnwise report`."""

from __future__ import annotations

from typing import Annotated

import typer


def report(
    run: Annotated[str, typer.Argument(help="A run.")],
    out: Annotated[str | None, typer.Option(metavar="FILE", help="The file to write. Default: report.html in the run folder.")] = None,
    compare: Annotated[list[str] | None, typer.Option(metavar="RUN", help="Another run to compare with; repeatable.")] = None,
    attempts: Annotated[int, typer.Option(min=0, help="Number of attempts to include, in whole groups.")] = 200,
) -> None:
    """Write the pages of one or more runs as one HTML file that needs no network."""
    from turnwise.pages.report import report_command as write

    write(run, out, compare or (), attempts)
