"""Who knows whether a name in a recipe is right, and what a method sets. A section asks here; the rooms above, which have the algorithms
and trackers, answer (setup/names.py, which comes with the package). So a wrong name is told when the recipe is read, and config imports
nothing above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], None]
_checks: dict[str, Check] = {}
Settings = Mapping[str, Any]
_methods: list[Callable[[str, Settings], Settings]] = []


def check_with(section: str, answer: Check) -> None:
    """Have a section of that name checked: `answer` raises a TurnwiseError that says what is wrong."""
    _checks[section] = answer


def check(section: str, values: Any) -> None:
    """Ask whoever knows."""
    if section in _checks:
        _checks[section](values)


def settings_with(answer: Callable[[str, Settings], Settings]) -> None:
    """Have the settings of a method told: `answer` gets its name and its options."""
    _methods[:] = [answer]


def ask_settings(name: str, options: Settings) -> Settings:
    """What a method sets, as dotted keys and values; ask whoever knows."""
    return _methods[0](name, options) if _methods else {}
