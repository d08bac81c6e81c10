"""A simple rule for text games: try everything that is listed, and first what was tried least in the same place.

It sees the listed actions and a name of the place, and remembers what it did. A trained agent should beat it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

IDLE = ("look", "inventory", "examine", "read", "drop", "close", "task", "help", "wait", "put")


class Curious:
    """The rule's memory of one attempt. Among actions that were tried equally often, those that change something come first."""

    def __init__(self) -> None:
        self._tries: Counter[tuple[Hashable, str]] = Counter()

    def choose(self, place: Hashable, actions: Sequence[str]) -> str | None:
        """An action, None if there is none. The choice counts as a try."""
        if not actions:
            return None
        action = min(actions, key=lambda action: (self._tries[place, action], action.split(" ")[0] in IDLE, action))
        self._tries[place, action] += 1
        return action
