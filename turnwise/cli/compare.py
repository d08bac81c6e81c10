"""`turnwise compare`."""

from __future__ import annotations

from typing import Annotated

import typer


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
    from turnwise.report.comparison import compare_command

    compare_command(sources, at, target, form, out, picture, anyway, baseline, metric or [], by_type)
