"""`turnwise recipes`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from turnwise.util.terminal import command, say


def recipes(
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]…", help="Only recipes that mention all of these words.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the recipes that come with Turnwise. Any of them runs by its name, from anywhere: `turnwise train NAME`."""
    from rich.table import Table
    from rich.text import Text

    from turnwise.config.addons import RECIPES, comes_with, recipe_environment
    from turnwise.recipe.reading import shipped_recipes
    from turnwise.util.console import Console

    found = shipped_recipes()
    rows = [about(name, path) for name, path in found.items()]
    rows = [row for row in rows if all(word.lower() in json.dumps(row, ensure_ascii=False).lower() for word in words or ())]
    if as_json:
        say(json.dumps(rows, indent=2))
        return
    console = Console()
    for device, title in (("cpu", "On a CPU, from scratch, in minutes"), ("gpu", "On a GPU, with a pretrained model")):
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
        table.add_column(no_wrap=True, style="bold cyan")
        table.add_column(overflow="fold")
        for row in rows:
            if row["device"] == device:
                table.add_row(Text(row["name"]), Text(row["about"]))
        if table.row_count:
            console.print(Text(title, style="bold"))
            console.print(table)
    missing = [name for name in RECIPES if name not in found]
    if missing:
        console.print(Text(f"Not installed: {', '.join(missing)}. {comes_with(missing[0], recipe_environment(missing[0]) or '')}"))
    console.print(Text(f"{command('train', 'NAME')} runs one; {command('train', 'NAME', '--dry-run')} shows it whole."))


def about(name: str, path: Path) -> dict[str, Any]:
    """One row of the list: the title in the file's first line, and what the recipe plays and trains."""
    from turnwise.recipe.reading import read_recipe

    values = read_recipe(path)
    model = values.get("model", {}).get("path")
    return {
        "name": name,
        "environment": str(values.get("env", {}).get("name", "")),
        "model": str(model).removeprefix("Qwen/") if model else "a tiny model",
        "device": "gpu" if model else "cpu",
        "about": path.read_text("utf-8").partition("\n")[0].removeprefix("# ").rstrip("."),
        "file": str(path),
    }
