"""`turnwise fit`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from turnwise.cli.shared import Overrides, Recipe, recipe_and_overrides

CARDS = (12, 16, 24, 40, 48, 80, 141)


def fit(
    recipe: Recipe = None,
    overrides: Overrides = None,
    memory: Annotated[float | None, typer.Option(help="Gigabytes (10^9 bytes) of the GPU. Default: one line for each of several.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead of the recipe's: a size (0.5b, 7b, …), a folder or name as in model.path, or a config.json.")
    ] = None,
    lora: Annotated[bool, typer.Option("--lora", help="Also consider adapters instead of training all weights.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show whether a recipe fits into a GPU's memory, what would make it fit, and what that costs. No weights are loaded."""
    from turnwise.planner.fit import GB, check_models, check_options, find, shape_given
    from turnwise.planner.small_gpu import MOST
    from turnwise.planner.tables import fit_as_data, overview, show
    from turnwise.recipe.reading import shipped_recipe
    from turnwise.recipe.schema import Config
    from turnwise.util.errors import TurnwiseError
    from turnwise.util.terminal import say

    recipe, changes = recipe_and_overrides(recipe, overrides)
    if memory is not None and not 0 < memory <= MOST:
        raise TurnwiseError(f"--memory takes gigabytes above 0 and up to {MOST:,}, not {memory:g}")
    config = Config.load(recipe or str(shipped_recipe("quickstart")), changes)
    check_options(config)
    check_models(config, model)
    shape = shape_given(model) if model is not None else None
    found = [find(config, int(size * GB), shape, lora) for size in ((memory,) if memory is not None else CARDS)]
    if as_json:
        data = [fit_as_data(one) for one in found]
        say(json.dumps(data[0] if memory is not None else data, indent=1))
    elif memory is not None:
        show(found[0], config.name)
    else:
        overview(found, config.name)
