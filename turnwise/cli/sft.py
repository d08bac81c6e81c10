"""`turnwise sft`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnwise.cli.shared import Overrides, Trust
from turnwise.util.errors import TurnwiseError


def sft(
    recipe: Annotated[str | None, typer.Argument(help="A recipe with an [sft] section: a file or a name. Default: the quickstart.")] = None,
    overrides: Overrides = None,
    trust: Trust = False,
) -> None:
    """Run only the supervised warm start of a recipe: learn from the environment's expert."""
    from turnwise.cli.train import start
    from turnwise.recipe.reading import is_override, shipped_recipe
    from turnwise.recipe.schema import Config

    if recipe is not None and is_override(recipe):
        overrides, recipe = [recipe, *(overrides or [])], None
    source = recipe or str(shipped_recipe("quickstart"))
    if Config.load(source, overrides or []).sft is None:
        raise TurnwiseError(f"recipe {source} has no [sft] section, so there is no warm start to run. Set its size: sft.tasks=256")
    raise typer.Exit(start(source, [*(overrides or []), "iterations=0"], None, None, False))
