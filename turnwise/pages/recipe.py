"""A run's recipe, and what in it differs from the defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnwise.pages.run_list import read_recipe
from turnwise.runs.folder import CONFIG
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside
from turnwise.util.secret import redact, redacted

ABSENT = object()


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
    known = defaults()
    differs = []
    for key, value in _flat(values):
        default = known.get(key, ABSENT)
        if default is ABSENT and shown(value) not in ("none", "[]"):
            differs.append([key, shown(value), None])
        elif default is not ABSENT and shown(value) != shown(default):
            differs.append([key, shown(value), shown(default)])
    return {"text": text, "differs": differs, "problem": ""}


def defaults() -> dict[str, Any]:
    """Every key of a recipe with its default, read from the fields themselves: no model and no environment is loaded for it."""
    from turnwise.recipe.schema import fields

    return {key: field.get_default(call_default_factory=False) for key, field, inner in fields() if inner is None}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def shown(value: Any) -> str:
    """A value as a recipe writes it; "none" and a missing value are the same there."""
    if value is None or value == "none":
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(shown(item) for item in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
