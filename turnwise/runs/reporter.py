"""Reporters are told what happens in a run. A reporter only shows: report/progress.py has those for a terminal, a log and a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Reporter:
    """The training loop tells it what happens. This one shows nothing: it is for tests and scripts, and the base of those that show
    something."""

    def begin(self, title: str, iterations: int, done: int) -> None: ...

    def phase(self, name: str, total: int | None = None) -> None: ...

    def expect(self, amount: int) -> None: ...  # the phase will make this many more attempts than announced

    def advance(self, amount: int = 1) -> None: ...  # attempts that are over

    def iteration(self, number: int, metrics: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...
