"""`turnwise sweep`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnwise.cli.shared import Recipe
from turnwise.util.errors import need_training


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
    if not dry_run:
        need_training("turnwise sweep")
    from rich.text import Text

    from turnwise.evaluation.sweep import Sweep, plan
    from turnwise.recipe.reading import is_override, shipped_recipe
    from turnwise.report.sweeping import close, line_of, show_plan
    from turnwise.report.tables import WIDTH
    from turnwise.util.console import Console

    console, given = Console(wide=WIDTH), values or []
    if recipe is not None and is_override(recipe):  # the first list of values may be in the position of a recipe
        given, recipe = [recipe, *given], None
    path = recipe or str(shipped_recipe("quickstart"))
    folder, planned = plan(path, given, out)
    show_plan(console, folder, planned)
    if dry_run:
        return

    def say(text: str) -> None:
        console.print(Text(text), soft_wrap=True)

    running = Sweep(folder, planned, jobs, threads, lambda job: say(line_of(job)), say)
    running.head |= {"recipe": path, "given": given}
    running.run()
    close(console, running, target)
    raise typer.Exit(running.exit_code)
