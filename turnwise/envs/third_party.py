"""What adapters to third-party environments share: text that another program can take, and when an episode counts as a success."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from turnwise.envs.episodes import checked_count
from turnwise.util.errors import TurnwiseError


def turn_limit(value: Any, where: str) -> int:
    """The given limit of turns, checked."""
    return checked_count(value, 1, math.inf, f"{where}: max_turns must be an integer from 1")


def well_formed(text: str) -> str:
    """The text without characters that other programs cannot handle: lone surrogates and NUL."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\x00", "\ufffd")


class Success:
    """When an ended episode was a success:

    `"reward"`      it ended by itself, and its last reward was positive
    `"terminated"`  it ended by itself, and not at a limit of steps
    `"info.NAME"`   the environment's own information says so under NAME
    a number        the sum of the rewards reached it
    """

    def __init__(self, rule: str | float, where: str):
        known = isinstance(rule, str) and (rule in ("reward", "terminated") or (rule.startswith("info.") and len(rule) > len("info.")))
        number = isinstance(rule, int | float) and not isinstance(rule, bool)
        if not known and not number:
            raise TurnwiseError(f'{where}: success is "reward", "terminated", "info.NAME" or a number (the return to reach), not {rule!r}')
        self.rule = rule

    def of(self, last: float, total: float, terminated: bool, info: Mapping[str, Any]) -> bool:
        if not isinstance(self.rule, str):
            return total >= self.rule
        if self.rule == "reward":
            return terminated and last > 0
        if self.rule == "terminated":
            return terminated
        return bool(info.get(self.rule.removeprefix("info."), False))


def plain_values(info: Mapping[Any, Any]) -> dict[str, Any]:
    """The entries of a third-party dictionary that are single values: worth logging, and safe to send to another process."""
    return {str(key): value for key, value in info.items() if isinstance(value, bool | int | float | str)}
