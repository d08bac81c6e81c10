"""Putting a recipe's values together: one table over another, and dotted overrides on top.

Where a section names something else than before, the options of what it named do not carry over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turnwise.util.errors import TurnwiseError


def overridden(values: dict[str, Any], pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Values with dotted overrides set in them."""
    for key, value in sorted(pairs, key=lambda item: not item[0].endswith(".name")):  # names first: they decide which options there are
        _set(values, key, value)
    return values


def without_none(value: Any) -> Any:
    """TOML has no null: a recipe writes "none"."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_none(item) for item in value]
    return "none" if value is None else value


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """One table over another; tables in both are merged, anything else is replaced."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            if "name" in value:
                old = renamed(key, old, value["name"])
            both[key] = merged(old, value)
        else:
            both[key] = value
    return both


def renamed(section: str, values: dict[str, Any], name: Any) -> dict[str, Any]:
    """A section that now names something else: the options of what it named before do not carry over."""
    if values.get("name", name) == name or section not in ("plan", "source", "signal", "credit", "objective", "schedule", "env"):
        return values
    return {key: value for key, value in values.items() if key != "options"} if section == "env" else {}


def _set(values: Any, dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        values = _opened(values, section, dotted)
    if isinstance(values, list):
        raise TurnwiseError(
            f"override {dotted}: {sections[-1]} is a list; change an entry of it ({'.'.join(sections)}.0.KEY), or all of it"
        )
    if last == "name" and (len(sections) == 1 or sections[:1] == ["signal"]):
        kept = dict(renamed(sections[0], values, value))
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
