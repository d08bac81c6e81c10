"""A run's recipe and what in it differs from the defaults; and which runs differ only by their seed, named as by `turnwise compare`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.pages.run_list import read_recipe
from turnwise.report.groups import ABSENT, gathered
from turnwise.runs.folder import CONFIG
from turnwise.runs.records import Record, flatten
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside
from turnwise.util.jsonable import json_value
from turnwise.util.secret import redact, redacted


def recipe_of(folder: Path) -> dict[str, Any]:
    """The text of the recipe and its differences: [key, value, default], the default is None if the key is an option of a component."""
    try:
        text = redact(inside(folder, folder / CONFIG).read_text(encoding="utf-8", errors="backslashreplace"))
    except OSError as error:
        return {"text": "", "differs": [], "problem": f"{CONFIG} cannot be read: {error.strerror}"}
    except TurnwiseError as error:
        return {"text": "", "differs": [], "problem": str(error)}
    values = redacted(read_recipe(folder))
    if not values:
        return {"text": text, "differs": [], "problem": f"{CONFIG} is not valid TOML"}
    usual = defaults()
    differs = []
    for key, value in flatten(values).items():
        default = shown(usual[key]) if key in usual else None
        if shown(value) != default and (key in usual or shown(value) not in ("none", "[]")):
            differs.append([key, shown(value), default])
    return {"text": text, "differs": differs, "problem": ""}


def defaults() -> dict[str, Any]:
    """Every key of a recipe with its default, read from the fields themselves: no model and no environment is loaded for it."""
    from turnwise.recipe.schema import fields

    return {key: field.get_default(call_default_factory=False) for key, field, inner in fields() if inner is None}


def shown(value: Any) -> str:
    """A value as a recipe writes it; "none" and a missing value are the same there."""
    if value is None or value == "none":
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(shown(item) for item in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_of(folders: Mapping[str, Path]) -> dict[str, Any]:
    """`settings`: each with its label, its runs and the values of the keys in which recipes differ (`keys`). A run with the same recipe
    and the same seed as another one of its setting is the same result twice: it is marked and left out of means."""
    if not folders:
        return {"keys": [], "settings": []}
    groups, named = gathered([_record(name, folder) for name, folder in folders.items()])
    keys = sorted({key for group in groups for key in group.differs})
    settings = []
    for group in groups:
        seen: set[int] = set()
        runs = []
        for record in group.records:
            runs.append({"run": record.name, "seed": record.seed, "twice": record.seed in seen})
            seen.add(record.seed)
        values = {key: ABSENT if group.differs.get(key) is None else shown(group.differs[key]) for key in keys}
        words = [values[key] if key.endswith(".name") else f"{key}={values[key]}" for key in named if values[key] != ABSENT]
        settings.append({"label": ", ".join(words) or group.label, "runs": runs, "values": [values[key] for key in keys]})
    return {"keys": keys, "settings": settings}


def chosen(text: str) -> list[str]:
    """The runs that a request names: a list as JSON."""
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TurnwiseError(f"runs takes a JSON list of names, not {text[:80]!r}")
    return list(dict.fromkeys(names))


def _record(name: str, folder: Path) -> Record:
    recipe = redacted(read_recipe(folder))
    seed = recipe.get("seed", 0)
    config = flatten(json_value(recipe)) if recipe else {"run": name}  # a recipe that cannot be read is equal to no other
    return Record(name, folder, config, seed if isinstance(seed, int) else 0, 0.0)
