"""Names with options in one string: `gigpo:omega=2:once=true`, `grid:size=5`. The command line takes them and tables show them."""

from __future__ import annotations

from typing import Any

from turnwise.util.errors import TurnwiseError

WORDS = {"true": True, "false": False}


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """The name, and the options as booleans, numbers or text."""
    name, *parts = text.strip().split(":")
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not (name and key and equals and value):
            raise TurnwiseError(f"{text!r}: write a name, then :option=value for each option, as in gigpo:omega=2:once=true")
        if key.strip() in options:
            raise TurnwiseError(f"{text!r}: option {key.strip()!r} is given twice")
        options[key.strip()] = read_value(value.strip())
    if not name:
        raise TurnwiseError("an empty name: write names separated by commas, as in gigpo,grpo")
    return name, options


def read_value(text: str) -> Any:
    """true, false, an integer, a number, or the text itself."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def split_names(text: str | None) -> list[str] | None:
    """The parts of a comma-separated list, each once; None if nothing was given."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise TurnwiseError(f"{text!r} names nothing: write names separated by commas, as in gigpo,grpo")
    return list(dict.fromkeys(names))
