"""Checks whether a name in a recipe is valid. A section asks here; the rooms above, which have the algorithms and trackers, answer
(setup/names.py, which comes with the package). So a wrong name is reported when the recipe is read, and config imports nothing above
it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[[Any], None]
_checks: dict[str, Check] = {}


def check_with(section: str, answer: Check) -> None:
    """Register the check of a section: `answer` raises a TurnwiseError that says what is wrong."""
    _checks[section] = answer


def check(section: str, values: Any) -> None:
    """Ask the registered check."""
    if section in _checks:
        _checks[section](values)
