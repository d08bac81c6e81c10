"""Reading recipes: TOML in, dotted overrides on top, as plain values; errors name the file and suggest the closest match. What the values
mean is defined in schema.py; writing.py writes them."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from turnwise.config.learning import CREDIT
from turnwise.config.merging import overridden, without_none
from turnwise.config.methods import Layer, Values, layers_of, resolved
from turnwise.config.section import NAME
from turnwise.config.trust import TOKEN
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside

FILE = re.compile(r"([^:\n]+\.py)(:[A-Za-z_][\w.]*)?")


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
    """A recipe's plain values with dotted overrides."""
    now = resolved([*layers_of(values), Layer(changes, typed=True)])
    if "name" not in changes:
        _rename(now, values)
    return now


def shipped_recipe(name: str) -> Path:
    """A recipe that comes with Turnwise: next to the package in a checkout, under the environment's share/ if it was installed."""
    for folder in (Path(__file__).parent.parent.parent / "recipes", Path(sys.prefix) / "share" / "turnwise" / "recipes"):
        if (folder / f"{name}.toml").is_file():
            return folder / f"{name}.toml"
    raise TurnwiseError(f"the recipe {name}.toml that comes with Turnwise was not found; give the path of a recipe")


def run_of(recipe: Path) -> Path | None:
    """The run folder that a recipe was saved with; None for any other recipe."""
    beside = ("metrics.jsonl", "summary.json", "checkpoints", "model", "rollouts", "evals", TOKEN)
    return recipe.parent if recipe.name == "config.toml" and any((recipe.parent / name).exists() for name in beside) else None


def read_recipe(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The values of a recipe file, on top of those of the recipe it extends."""
    alone = run_of(path)
    if alone is not None:
        inside(alone, path)
    path = path.resolve()
    if path in seen:
        raise TurnwiseError(f"recipe {path} extends itself, by way of {' → '.join(p.name for p in seen)}")
    if path.is_dir():
        of_run = path / "config.toml"
        run = f". It is a run: continue it with --resume {path}, or start a new one from {of_run}" if of_run.is_file() else ""
        raise TurnwiseError(f"{path} is a folder, not a recipe{run}")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = get_close_matches(path.name, [p.name for p in path.parent.glob("*.toml")], n=1) if path.parent.is_dir() else []
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        raise TurnwiseError(f"no recipe {path}: there is no such file.{hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise TurnwiseError(f"recipe {path}: {error}") from None
    if alone is None:
        values = beside(values, path.parent)
    base = values.pop("extends", None)
    if base is None:
        return Values([Layer(values, settled=alone is not None)])
    if alone is not None:
        raise TurnwiseError(f"recipe {path}: the record of a run stands alone, and this one says extends = {base!r}: it was changed since")
    if not isinstance(base, str):
        raise TurnwiseError(f"recipe {path}: extends takes the path of another recipe, not {base!r}")
    below = read_recipe(path.parent / base, (*seen, path))
    both = resolved([*layers_of(below), Layer(values)])
    if "name" not in values:
        _rename(both, below)
        values |= {"name": both["name"]} if "name" in both else {}
    return Values([*layers_of(below), Layer(values)])


def beside(values: Any, folder: Path) -> Any:
    """A recipe's values in which code files that are next to the recipe, and not in the current folder, are named by their path from
    here."""
    if isinstance(values, dict):
        return {key: beside(value, folder) for key, value in values.items()}
    if isinstance(values, list):
        return [beside(value, folder) for value in values]
    found = FILE.fullmatch(values) if isinstance(values, str) else None
    if found is None or Path(found[1]).expanduser().is_absolute() or Path(found[1]).exists() or not (folder / found[1]).is_file():
        return values
    place = (folder / found[1]).resolve()
    here = Path.cwd().resolve()
    return f"{place.relative_to(here) if place.is_relative_to(here) else place}{found[2] or ''}"


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
