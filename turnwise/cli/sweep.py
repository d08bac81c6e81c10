"""`turnwise sweep`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnwise.cli.shared import Recipe


def sweep(
    recipe: Recipe = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUES", help="What varies, for example credit.name=gigpo,grpo seed=0..4. A single value applies to all runs."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of concurrent runs; the cores are divided among them.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads per run. Default: the cores divided by the jobs.")] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The folder for the runs. Default: NAME-sweep in the recipe's out.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="Also report the cost of reaching this success (0.6 is 60 %).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs and stop.")] = False,
) -> None:
    """Train every combination of values and compare them. Run the same command again to continue; finished runs are skipped."""
    from turnwise.report.sweeping import sweep_command

    raise typer.Exit(sweep_command(recipe, values or [], out, jobs, threads, dry_run, target))
