"""What tests that train share: settings of the smallest runs, and a run that is killed in the middle of an iteration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from turnwise.runs.reporter import Reporter

TINY: dict[str, Any] = {
    "model.tiny.layers": 1,
    "model.tiny.hidden": 32,
    "model.tiny.heads": 2,
    "collect.group_size": 4,
    "eval.repeats": 1,
    "run.checkpoint_every": 1,
}
WARMED = TINY | {"collect.groups": 3, "sft.tasks": 24, "sft.steps": 20, "eval.n": 2}  # after a short warm start
UNTAUGHT = TINY | {"iterations": 2, "env.max_turns": 3, "collect.groups": 2, "sft": None, "eval.n": 1}  # a model that babbles
SMALLEST: dict[str, Any] = {  # of the quickstart, for any method
    "sft": None,
    "env.tasks": 8,
    "env.max_turns": 3,
    "collect.groups": 2,
    "collect.group_size": 4,
    "eval.n": 1,
    "eval.every": 0,
    "engine.max_tokens": 6,
    "model.tiny.layers": 1,
    "model.tiny.hidden": 16,
    "model.tiny.heads": 2,
    "model.tiny.vocabulary_tasks": 2,
}


class Killed(Exception):
    """The program has ended."""


class Fuse(Reporter):
    """Counts attempts, phases, and whatever is brought to the disk; at the given count everything ends."""

    def __init__(self, at: int | None, blow: Callable[[], None]):
        self.count, self.at, self.blow = 0, at, blow

    def advance(self, amount: int = 1, unit: str = "attempts") -> None:
        self.count += 1
        if self.count == self.at:
            self.blow()

    def phase(self, name: str, total: int | None = None, unit: str = "") -> None:
        self.advance()

    @contextmanager
    def watching(self) -> Iterator[Fuse]:
        flush = os.fsync

        def counted(handle: int) -> None:
            flush(handle)
            self.advance()

        os.fsync = counted
        try:
            yield self
        finally:
            os.fsync = flush


class Kills(Reporter):
    """Ends the program in the middle of an iteration: its attempts are made, and nothing of them is saved."""

    def __init__(self, iteration: int):
        self.left = iteration

    def phase(self, name: str, total: int | None = None, unit: str = "") -> None:
        self.left -= name == "learning"
        if self.left == 0:
            raise Killed
