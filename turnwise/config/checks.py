"""Who knows whether a name in a recipe is right. A section asks here; the rooms above, which have the algorithms and trackers, answer
(setup/names.py, which comes with the package). So a wrong name is told when the recipe is read, and config imports nothing above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[[Any], None]
_checks: dict[str, Check] = {}


def check_with(section: str, answer: Check) -> None:
    """Have a section of that name checked: `answer` raises a TurnwiseError that says what is wrong."""
    _checks[section] = answer


def check(section: str, values: Any) -> None:
    """Ask whoever knows."""
    if section in _checks:
        _checks[section](values)
