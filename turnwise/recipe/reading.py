"""Reading recipes: from files, dictionaries and objects to layers of plain values; errors name the file and suggest the closest match.

A recipe's way is one line: layers are read here, put together in merging.py, and checked in schema.py; writing.py writes them."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from turnwise.config import addons
from turnwise.config.references import with_code_beside
from turnwise.config.trust import TOKEN
from turnwise.recipe.merging import Layer, overridden, resolved, with_names
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside

FROM_SCRATCH = "own-env"  # the recipe below one that names no model
_PACKAGE = Path(__file__).parent.parent
# In a checkout, the package has a link to the folder beside it; Windows may have checked out a file instead.
SHIPPED = next((folder for folder in (_PACKAGE / "recipes", _PACKAGE.parent / "recipes") if folder.is_dir()), _PACKAGE / "recipes")


class RecipeLayers(NamedTuple):
    """A recipe as it was given: its layers, the lowest first, its name in messages, and the run that it is the record of."""

    layers: Sequence[Layer]
    name: str
    run: Path | None = None

    @property
    def environment(self) -> Any:
        """The environment that it names; None if it names none."""
        sections = (layer.words.get("env") for layer in reversed(self.layers))
        return next((section["name"] for section in sections if isinstance(section, Mapping) and "name" in section), None)


def recipe_layers(recipe: str | PathLike[str] | Mapping[str, Any] | BaseModel | None) -> RecipeLayers:
    """The layers of a recipe, however it is given. A dictionary may have dotted keys and, like a file, `extends`, relative to the current
    folder."""
    if recipe is None:
        return RecipeLayers([], "the defaults")
    if isinstance(recipe, str | PathLike):
        return RecipeLayers(file_layers(Path(recipe)), str(recipe), run_of(Path(recipe)))
    if isinstance(recipe, BaseModel):
        return RecipeLayers([Layer(recipe.model_dump(mode="json"), settled=True)], "given as an object")
    words = dict(recipe)
    below = file_layers(Path(str(words.pop("extends")))) if "extends" in words else []
    return RecipeLayers([*below, Layer(overridden({}, words.items()))], "given as a dictionary")


def scratch_layer() -> Layer:
    """What is below a recipe that says nothing about the model, as with `turnwise train --env`: the tiny model needs other settings than a
    pretrained one, and a warm start."""
    layers = file_layers(SHIPPED / f"{FROM_SCRATCH}.toml")
    return Layer({key: value for key, value in resolved(layers).items() if key not in ("name", "env")})


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with Turnwise and with installed plugins, by name."""
    return dict(sorted({**addons.plugin_recipes(), **_own_recipes()}.items()))


def _own_recipes() -> dict[str, Path]:
    return {path.stem: path for path in SHIPPED.glob("*.toml")}


def shipped_recipe(name: str) -> Path:
    """A recipe that comes with Turnwise, by name."""
    return find_recipe(SHIPPED / f"{name}.toml")


def is_recipe(source: str | PathLike[str]) -> bool:
    """Whether a source is a recipe: a TOML file, or a name that `find_recipe` knows, installed or not. A folder of that name comes
    first."""
    path = Path(source)
    if path.suffix == ".toml" or path.exists():
        return path.suffix == ".toml"
    return _located(path, Path()) is not None or addons.recipe_environment(_short_name(path)) is not None


def find_recipe(path: Path, folder: Path = Path()) -> Path:
    """The file of a recipe: a path, seen from `folder`, or the name of a recipe that comes with Turnwise, as quickstart, quickstart.toml
    or recipes/quickstart.toml. The ending may be left out. A file of the user's comes first."""
    if (located := _located(path, folder)) is not None:
        return located
    place = (folder / path).resolve()
    if place.is_dir():
        of_run = place / "config.toml"
        run = f". It is a run: continue it with --resume {place}, or start a new one from {of_run}" if of_run.is_file() else ""
        raise TurnwiseError(f"{place} is a folder, not a recipe{run}")
    if (env := addons.recipe_environment(_short_name(path))) is not None:
        raise addons.comes_with(f"the recipe {_short_name(path)}", env)
    shipped = shipped_recipes()
    files = {file.name: str(file) for file in place.parent.glob("*.toml")} if place.parent.is_dir() else {}
    near = [files[name] for name in get_close_matches(place.name, files, n=1)] or get_close_matches(place.stem, shipped, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise TurnwiseError(
        f"no recipe {folder / path}: there is no such file, and none of that name comes with Turnwise.{hint} These do: {', '.join(shipped)}"
    )


def _located(path: Path, folder: Path) -> Path | None:
    place = folder / path
    for file in (place, place.parent / f"{place.name}.toml"):
        if file.is_file():
            return file
    name = _short_name(path)
    return _own_recipes().get(name) or addons.plugin_recipes().get(name)


def _short_name(path: Path) -> str:
    """The name by which a path means a recipe of Turnwise or of a plugin: quickstart, quickstart.toml, recipes/quickstart; empty if it
    cannot mean one."""
    return path.name.removesuffix(".toml") if path.parent in (Path(), Path("recipes")) else ""


def run_of(recipe: Path) -> Path | None:
    """The run folder that a recipe was saved with; None for any other recipe."""
    beside = ("metrics.jsonl", "summary.json", "checkpoints", "model", "rollouts", "evals", TOKEN)
    return recipe.parent if recipe.name == "config.toml" and any((recipe.parent / name).exists() for name in beside) else None


def read_recipe(recipe: Path) -> dict[str, Any]:
    """The values of a recipe file, on top of those of the recipes that it extends."""
    return resolved(with_names(file_layers(recipe)))


def file_layers(recipe: Path) -> list[Layer]:
    """A recipe file as a layer, above those of the recipes that it extends."""
    layers, files = list[Layer](), list[Path]()
    base: str | None = str(recipe)
    while base is not None:
        path = find_recipe(Path(base), files[-1].parent if files else Path())
        run = run_of(path)
        if run is not None:
            inside(run, path)
        path = path.resolve()
        if path in files:
            raise TurnwiseError(f"recipe {path} extends itself, by way of {' → '.join(file.name for file in files)}")
        files.append(path)
        try:
            words = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise TurnwiseError(f"recipe {path}: {error}") from None
        base = words.pop("extends", None)
        if base is not None and run is not None:
            raise TurnwiseError(
                f"recipe {path}: the record of a run stands alone, and this one says extends = {base!r}: it was changed since"
            )
        if not isinstance(base, str | None):
            raise TurnwiseError(f"recipe {path}: extends takes the path or the name of another recipe, not {base!r}")
        layers.insert(0, Layer(words if run is not None else with_code_beside(words, path.parent), settled=run is not None))
    return layers


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value`: the value is TOML (3, true, [1, 2], "text") and anything else is text."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", key):
        raise TurnwiseError(f"an override is written key=value, with dots between sections (credit.name=grpo), not {text!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def is_override(text: str) -> bool:
    """Whether a text is `key=value` and not a path: the folders of a sweep have equals signs in their names too."""
    key, equals, _ = text.partition("=")
    return bool(equals) and "/" not in key and os.sep not in key and not os.path.exists(text)  # noqa: PTH110 (Path.exists raises on long texts)
