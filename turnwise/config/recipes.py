"""Reading recipes: TOML in, dotted overrides on top, as plain values; errors name the file and suggest the closest match. What the values
mean is defined in schema.py; writing.py writes them."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from turnwise.config.sections import CREDIT, NAME
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
        return recipe.model_dump(mode="json"), "given as an object"
    if not isinstance(recipe, Mapping):
        return read_recipe(Path(recipe)), str(recipe)
    values = dict(recipe)
    base = read_recipe(Path(str(values.pop("extends")))) if "extends" in values else {}
    return _merged(base, _overridden({}, list(values.items()))), "given as a dictionary"


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's plain values with dotted overrides."""
    now = _overridden(dict(values), list(changes.items()))
    if "name" not in changes:
        _rename(now, _trained(values))
    return now


def _overridden(values: dict[str, Any], pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    for key, value in sorted(pairs, key=lambda item: not item[0].endswith(".name")):  # names first: they decide which options there are
        _set(values, key, value)
    return values


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
        raise TurnwiseError(f"no recipe {path}." + (f" Did you mean {path.parent / near[0]}?" if near else "")) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise TurnwiseError(f"recipe {path}: {error}") from None
    if alone is None:
        values = _beside(values, path.parent)
    base = values.pop("extends", None)
    if base is None:
        return values
    if alone is not None:
        raise TurnwiseError(f"recipe {path}: the record of a run stands alone, and this one says extends = {base!r}: it was changed since")
    if not isinstance(base, str):
        raise TurnwiseError(f"recipe {path}: extends takes the path of another recipe, not {base!r}")
    below = read_recipe(path.parent / base, (*seen, path))
    both = _merged(below, values)
    if "name" not in values:
        _rename(both, _trained(below))
    return both


def _beside(values: Any, folder: Path) -> Any:
    """A recipe's values in which code files that are next to the recipe, and not in the current folder, are named by their path from
    here."""
    if isinstance(values, dict):
        return {key: _beside(value, folder) for key, value in values.items()}
    if isinstance(values, list):
        return [_beside(value, folder) for value in values]
    found = FILE.fullmatch(values) if isinstance(values, str) else None
    if found is None or Path(found[1]).expanduser().is_absolute() or Path(found[1]).exists() or not (folder / found[1]).is_file():
        return values
    place = (folder / found[1]).resolve()
    here = Path.cwd().resolve()
    return f"{place.relative_to(here) if place.is_relative_to(here) else place}{found[2] or ''}"


def _trained(values: Mapping[str, Any]) -> str:
    """The credit algorithm that a recipe's plain values name."""
    section = values.get("credit")
    return str(section.get("name", CREDIT) if isinstance(section, dict) else CREDIT)


def _rename(values: dict[str, Any], before: str) -> None:
    """A run's name says what is trained: if another algorithm than the recipe's was chosen, a name that the user did not set follows
    it."""
    now, name = _trained(values), values.get("name", NAME)
    if now == before or not isinstance(name, str):
        return
    word = re.sub(r"[^A-Za-z0-9._=-]+", "-", now.rsplit(":", 1)[-1])
    parts = re.split(r"([.=-])", name)
    values["name"] = "".join(word if part == before else part for part in parts) if before in parts else f"{name}-{word}"


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            if "name" in value:
                old = _renamed(key, old, value["name"])
            both[key] = _merged(old, value)
        else:
            both[key] = value
    return both


def _renamed(section: str, values: dict[str, Any], name: Any) -> dict[str, Any]:
    """A section that now names something else: the options of what it named before do not carry over."""
    if values.get("name", name) == name or section not in ("plan", "signal", "credit", "objective", "schedule", "env"):
        return values
    return {key: value for key, value in values.items() if key != "options"} if section == "env" else {}


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


def _set(values: Any, dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        values = _opened(values, section, dotted)
    if isinstance(values, list):
        raise TurnwiseError(
            f"override {dotted}: {sections[-1]} is a list; change an entry of it ({'.'.join(sections)}.0.KEY), or all of it"
        )
    if last == "name" and (len(sections) == 1 or sections[:1] == ["signal"]):
        kept = dict(_renamed(sections[0], values, value))
        values.clear()
        values.update(kept)
    values[last] = value


def _opened(values: Any, section: str, dotted: str) -> Any:
    """A section as a copy that may be changed: of a table by its name, of a list of tables by its number, as in `signal.0.weight`."""
    key: Any = section
    if isinstance(values, list):
        if not section.isdecimal() or int(section) >= len(values):
            raise TurnwiseError(f"override {dotted}: there is no entry {section}; the list has {len(values)}, counted from 0")
        key = int(section)
    inner = values[key] if isinstance(values, list) else values.get(key)
    inner = {} if inner is None or inner == "none" else inner
    if not isinstance(inner, dict | list):
        raise TurnwiseError(f"override {dotted}: {section} is {inner!r}, not a section")
    values[key] = copied = inner.copy()
    return copied
