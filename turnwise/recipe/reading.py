"""Reading recipes: TOML in, dotted overrides on top, as plain values; errors name the file and suggest the closest match. What the values
mean is defined in schema.py; writing.py writes them. How values are put together: merging.py."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from turnwise.config.addons import install_command, plugin_recipes, recipe_environment
from turnwise.config.references import with_code_beside
from turnwise.config.section import NAME
from turnwise.config.trust import TOKEN
from turnwise.methods.settings import CREDIT
from turnwise.recipe.merging import Layer, Values, layers_of, overridden, resolved, without_none
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside

FROM_SCRATCH = "own-env"  # the recipe below one that names no model
_PACKAGE = Path(__file__).parent.parent
# In a checkout, the package has a link to the folder beside it; Windows may have checked out a file instead.
SHIPPED = next((folder for folder in (_PACKAGE / "recipes", _PACKAGE.parent / "recipes") if folder.is_dir()), _PACKAGE / "recipes")


def read_values(recipe: str | PathLike[str] | Mapping[str, Any] | BaseModel | None) -> tuple[dict[str, Any], str]:
    """The plain values of a recipe, however it is given, and its name in messages. A dictionary may have dotted keys and, like a file,
    `extends`, relative to the current folder."""
    if recipe is None:
        return {}, "the defaults"
    if isinstance(recipe, BaseModel):
        return Values([Layer(without_none(recipe.model_dump(mode="json")), settled=True)]), "given as an object"
    if not isinstance(recipe, Mapping):
        return read_recipe(Path(recipe)), str(recipe)
    values = dict(recipe)
    below = layers_of(read_recipe(Path(str(values.pop("extends"))))) if "extends" in values else ()
    return Values([*below, Layer(overridden({}, values.items()))]), "given as a dictionary"


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's plain values with dotted overrides. A recipe that says nothing about the model builds on own-env.toml, as
    `turnwise train --env` does: the tiny model needs other settings than a pretrained one, and a warm start."""
    layers = [*layers_of(values), Layer(changes, typed=True)]
    now = resolved(layers)
    if (
        isinstance(values, Values)
        and not values.layers[0].settled
        and "model" not in now
        and _section(now, "engine").get("name") != "openai"
    ):
        below = read_recipe(SHIPPED / f"{FROM_SCRATCH}.toml")
        now = resolved([Layer({key: value for key, value in below.items() if key not in ("name", "env")}), *layers])
    if "name" not in changes:
        _rename(now, values)
    return now


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with Turnwise and with installed plugins, by name."""
    return dict(sorted({**plugin_recipes(), **_own_recipes()}.items()))


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
    return _located(path, Path()) is not None or recipe_environment(_short_name(path)) is not None


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
    if (env := recipe_environment(_short_name(path))) is not None:
        raise TurnwiseError(f"the recipe {_short_name(path)} comes with another package. Install it with: {install_command(env)}")
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
    return _own_recipes().get(name) or plugin_recipes().get(name)


def _short_name(path: Path) -> str:
    """The name by which a path means a recipe of Turnwise or of a plugin: quickstart, quickstart.toml, recipes/quickstart; empty if it
    cannot mean one."""
    return path.name.removesuffix(".toml") if path.parent in (Path(), Path("recipes")) else ""


def run_of(recipe: Path) -> Path | None:
    """The run folder that a recipe was saved with; None for any other recipe."""
    beside = ("metrics.jsonl", "summary.json", "checkpoints", "model", "rollouts", "evals", TOKEN)
    return recipe.parent if recipe.name == "config.toml" and any((recipe.parent / name).exists() for name in beside) else None


def read_recipe(recipe: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The values of a recipe file, on top of those of the recipe it extends."""
    path = find_recipe(recipe, seen[-1].parent if seen else Path())
    alone = run_of(path)
    if alone is not None:
        inside(alone, path)
    path = path.resolve()
    if path in seen:
        raise TurnwiseError(f"recipe {path} extends itself, by way of {' → '.join(p.name for p in seen)}")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise TurnwiseError(f"recipe {path}: {error}") from None
    if alone is None:
        values = with_code_beside(values, path.parent)
    base = values.pop("extends", None)
    if base is None:
        return Values([Layer(values, settled=alone is not None)])
    if alone is not None:
        raise TurnwiseError(f"recipe {path}: the record of a run stands alone, and this one says extends = {base!r}: it was changed since")
    if not isinstance(base, str):
        raise TurnwiseError(f"recipe {path}: extends takes the path or the name of another recipe, not {base!r}")
    below = read_recipe(Path(base), (*seen, path))
    both = resolved([*layers_of(below), Layer(values)])
    if "name" not in values:
        _rename(both, below)
        values |= {"name": both["name"]} if "name" in both else {}
    return Values([*layers_of(below), Layer(values)])


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}


def _trained(values: Mapping[str, Any], section: str = "credit", default: str = CREDIT) -> str:
    """The credit algorithm, or the method, that a recipe's plain values name."""
    found = values.get(section)
    return str(found.get("name", default) if isinstance(found, dict) else default)


def _rename(values: dict[str, Any], old: Mapping[str, Any]) -> None:
    """A run's name says what is trained: if another method or algorithm than the recipe's was chosen, a name that the user did not set
    follows it."""
    before, now, name = _trained(old), _trained(values), values.get("name", NAME)
    if (method := _trained(values, "method", "")) != _trained(old, "method", ""):
        before, now = _trained(old, "method", before), method or now
    if now == before or not isinstance(name, str):
        return
    word = re.sub(r"[^A-Za-z0-9._=-]+", "-", now.rsplit(":", 1)[-1])
    parts = re.split(r"([.=-])", name)
    values["name"] = "".join(word if part == before else part for part in parts) if before in parts else f"{name}-{word}"


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
