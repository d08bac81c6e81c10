"""Checks whether a name in a recipe is valid, and what a method brings. A section asks here; the rooms above, which have the algorithms and
trackers, answer (setup/names.py, which comes with the package). So a wrong name is reported when the recipe is read, and config imports
nothing above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], None]
_checks: dict[str, Check] = {}
Settings = Mapping[str, Any]
Brought = tuple[Settings, Settings]
_methods: list[Callable[[str, Settings], Brought]] = []
_carriers: list[Callable[[str, Settings, Settings], Settings]] = []


def check_with(section: str, answer: Check) -> None:
    """Register the check of a section: `answer` raises a TurnwiseError that says what is wrong."""
    _checks[section] = answer


def check(section: str, values: Any) -> None:
    """Ask the registered check."""
    if section in _checks:
        _checks[section](values)


def settings_with(answer: Callable[[str, Settings], Brought]) -> None:
    """Register the source of a method's settings: `answer` gets its name and its options."""
    _methods[:] = [answer]


def ask_settings(name: str, options: Settings) -> Brought:
    """The settings that a method is, and its authors' values of shared ones, as dotted keys and values."""
    return _methods[0](name, options) if _methods else ({}, {})


def carry_with(answer: Callable[[str, Settings, Settings], Settings]) -> None:
    """Register who knows which options of a section stay when a method names something else in it."""
    _carriers[:] = [answer]


def ask_carried(section: str, before: Settings, now: Settings) -> Settings:
    """The options of a section as it was that hold for what it names now as well."""
    return _carriers[0](section, before, now) if _carriers else {}
