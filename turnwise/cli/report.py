"""`turnwise report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[str, typer.Argument(help="A run.")],
    out: Annotated[str | None, typer.Option(metavar="FILE", help="The file to write. Default: report.html in the run folder.")] = None,
    compare: Annotated[list[str] | None, typer.Option(metavar="RUN", help="Another run to compare with; repeatable.")] = None,
    attempts: Annotated[int, typer.Option(min=0, help="Number of attempts to include, in whole groups.")] = 200,
) -> None:
    """Write the pages of one or more runs as one HTML file that needs no network."""
    from turnwise.pages.report import write_report
    from turnwise.pages.run_list import readable
    from turnwise.util.terminal import say

    path = Path(out) if out is not None else Path(run) / "report.html"
    written, collected = write_report(Path(run), path, [Path(other) for other in compare or ()], attempts)
    left = "" if collected.attempts == collected.kept else f" of {collected.kept} (--attempts N embeds more)"
    size = f"{written.stat().st_size / 1e6:.1f} MB, {collected.attempts} attempts{left}"
    say(f"{readable(written)}: {size}. It needs no network; open it in a browser.")
