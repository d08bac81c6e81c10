"""`turnwise cluster check`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnwise.cli.shared import Overrides


def check(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe: a TOML file, or the name of one that comes with Turnwise. Default: the quickstart.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Show what each node of a cluster has, and where each part of a recipe would be placed. Nothing is trained and no model is loaded. The
    exit code is 1 if the recipe cannot be placed. A recipe without a [cluster] section is checked with one engine."""
    from turnwise.recipe.reading import is_override, parse_override, shipped_recipe
    from turnwise.recipe.schema import Config
    from turnwise.report.cluster_check import check_command

    changes = list(overrides or [])
    if recipe is not None and is_override(recipe):
        changes, recipe = [recipe, *changes], None
    given = dict(parse_override(text) for text in changes)
    config = Config.load(recipe or shipped_recipe("quickstart"), given)
    if config.cluster is None:
        config = Config.load(recipe or shipped_recipe("quickstart"), given | {"cluster.engines": 1})
    raise typer.Exit(check_command(config))
