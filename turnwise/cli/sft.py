"""`turnwise sft`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnwise.cli.shared import Overrides, Trust, recipe_and_overrides
from turnwise.util.errors import TurnwiseError, need_training


def sft(
    recipe: Annotated[str | None, typer.Argument(help="A recipe with an [sft] section: a file or a name. Default: the quickstart.")] = None,
    overrides: Overrides = None,
    trust: Trust = False,
) -> None:
    """Run only the supervised warm start of a recipe: learn from the environment's expert."""
    need_training("turnwise sft")
    from turnwise.cli.train import start
    from turnwise.recipe.reading import shipped_recipe
    from turnwise.recipe.schema import Config

    recipe, changes = recipe_and_overrides(recipe, overrides)
    source = recipe or str(shipped_recipe("quickstart"))
    if Config.load(source, changes).sft is None:
        raise TurnwiseError(f"recipe {source} has no [sft] section, so there is no warm start to run. Set its size: sft.tasks=256")
    raise typer.Exit(start(source, changes | {"iterations": 0}))
