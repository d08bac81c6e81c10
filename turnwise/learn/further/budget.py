"""How many tokens a model computes at once, and what happens if that is too many."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from turnwise.learn.decide import Decisions
from turnwise.learn.memory import Memory
from turnwise.learn.optimiser import Optimiser
from turnwise.util.errors import TurnwiseError

T = TypeVar("T")


class Budget:
    """`tokens` are computed at once: the given number (0: what memory allows), and half of it after running out of memory."""

    def __init__(self, memory: Memory, asked: int, setting: str, undo: Callable[[], None], decisions: Decisions | None = None):
        """`setting` names what a user would lower; `undo` clears what a failed pass has left behind."""
        self.memory, self.setting, self._undo, self.decisions = memory, setting, undo, decisions or Decisions()
        self._automatic, self.tokens = asked == 0, asked

    def look(self, optimiser: Optimiser | None) -> None:
        """Find out how much memory is free. This decides the number of tokens if the recipe does not."""
        self.memory.look(optimiser)
        if self._automatic:
            self.tokens = self.decisions.tokens(self.memory.tokens())

    def __call__(self, work: Callable[[int], T]) -> T:
        """Do the work. If it runs out of memory, do it again with half the tokens at a time, and keep that number."""
        found, error = self._attempt(work)
        if not self.decisions.retry(error is not None):
            return found[0]
        tokens, self._automatic, self.tokens = self.tokens, False, max(1, self.tokens // 2)
        self.memory.room *= 0.75
        warnings.warn(f"out of memory with {tokens} tokens at once: continuing with {self.tokens} ({self.setting})", stacklevel=2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        found, error = self._attempt(work)
        if self.decisions.retry(error is not None):
            raise TurnwiseError(f"out of memory with {self.tokens} tokens at once as well ({error}): set {self.setting} lower") from error
        return found[0]

    def _attempt(self, work: Callable[[int], T]) -> tuple[list[T], torch.OutOfMemoryError | None]:
        """The result in a list, or nothing and the error. The error keeps no frame alive: those hold the tensors that filled the memory."""
        try:
            return [work(self.tokens)], None
        except torch.OutOfMemoryError as error:
            self._undo()
            return [], error.with_traceback(None)
