"""`turnwise compare`."""

from __future__ import annotations

from typing import Annotated

import typer

FORMATS = ("table", "markdown", "json")


def compare(
    sources: Annotated[list[str], typer.Argument(metavar="RUN", help="Runs, folders of runs (a sweep), or files of `eval --save`.")],
    at: Annotated[str, typer.Option(help="The evaluation to use: last, best, or an iteration.")] = "last",
    target: Annotated[float | None, typer.Option(help="Also report the cost of reaching this success (0.6 is 60 %).")] = None,
    form: Annotated[str, typer.Option("--format", help="table, markdown or json.")] = "table",
    out: Annotated[str | None, typer.Option(metavar="FOLDER", help="Write comparison.md, .json and .png to this folder.")] = None,
    picture: Annotated[str | None, typer.Option(metavar="FILE", help="Plot the learning curves: .png, .svg or .pdf.")] = None,
    baseline: Annotated[str | None, typer.Option(metavar="TEXT", help="Test only against the groups whose label contains this.")] = None,
    metric: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Also show this metric over training; repeatable.")] = None,
    by_type: Annotated[bool, typer.Option("--by-type", help="Also show success by type of task.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also show results that were measured differently, without tests.")] = False,
) -> None:
    """Compare runs: groups over seeds with intervals, paired tests, sample efficiency, curves."""
    from turnwise.report.comparison import compare
    from turnwise.report.tables import WIDTH
    from turnwise.util.console import Console
    from turnwise.util.errors import TurnwiseError
    from turnwise.util.terminal import say

    if form not in FORMATS:
        raise TurnwiseError(f"--format is one of {', '.join(FORMATS)}, not {form!r}")
    found = compare(sources, at=at, target=target, anyway=anyway, baseline=baseline, metrics=metric or [], by_type=by_type)
    written = found.write(out) if out is not None else []
    written += [found.plot(picture)] if picture is not None else []
    if form == "table":
        Console(wide=WIDTH).print(found.table())
    else:
        say(found.to_markdown() if form == "markdown" else found.to_json(), end="")
    for path in written:
        say(f"written: {path}", err=True)  # standard output has only the comparison, so that it can be piped
