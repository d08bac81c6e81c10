"""`turnwise view`."""

from __future__ import annotations

from typing import Annotated

import typer


def view(
    folder: Annotated[str, typer.Argument(help="A run, or a folder that contains runs.")] = "runs",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port; 0 selects a free one. Default: 7878, or a free one.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """View runs in a browser: curves, every attempt turn by turn, and why each turn was rewarded."""
    from turnwise.pages.run_list import RunList
    from turnwise.pages.server import serve

    serve(RunList(folder), port, browser)
