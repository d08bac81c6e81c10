"""How many tokens a model computes at once, and what happens if that is too many."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from turnwise.learn.memory import Memory
from turnwise.learn.optimiser import Optimiser
from turnwise.learn.ranks.group import Decisions
from turnwise.util.errors import TurnwiseError

T = TypeVar("T")


class Budget:
    """`tokens` are computed at once: the number that a recipe asks for (0: what memory allows), and half of it after running out of memory.
    Calling it with some work does the work, and once more with half the tokens if memory ran out on any rank."""

    def __init__(
        self, memory: Memory, asked: int, setting: str, undo: Callable[[], None], decisions: Decisions | None = None, advice: str = ""
    ):
        """`setting` names what a user would lower, and `advice` what else helps; `undo` clears what a failed pass has left behind."""
        self.memory, self._undo, self.decisions = memory, undo, decisions or Decisions()
        self._setting, self._advice = setting, advice
        self._automatic, self.tokens = asked == 0, asked

    def measure(self, optimiser: Optimiser | None) -> None:
        """Find out how much memory is free. This decides what a backward pass keeps and, if the recipe does not say it, the tokens."""
        self.memory.look(optimiser)
        if self._automatic:
            self.tokens = self.decisions.tokens(self.memory.tokens())

    def __call__(self, work: Callable[[int], T]) -> T:
        """The result of `work(tokens)`. After running out of memory, the smaller number stays."""
        results, problem = self._attempt(work)
        if not problem:
            return results[0]
        tokens, self._automatic, self.tokens = self.tokens, False, max(1, self.tokens // 2)
        self.memory.room *= 0.75
        self.memory.retries += 1
        warnings.warn(f"out of memory with {tokens} tokens at once: continuing with {self.tokens} ({self._setting})", stacklevel=2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        results, problem = self._attempt(work)
        if problem:
            raise TurnwiseError(
                f"out of memory with {self.tokens} tokens at once as well ({problem}). Set {self._setting} lower{self._advice}"
            )
        return results[0]

    def _attempt(self, work: Callable[[int], T]) -> tuple[list[T], str]:
        """The result in a list, or nothing and the reason to repeat it: memory ran out here, or on another rank. The error itself is not
        kept: its frames hold the tensors that filled the memory."""
        try:
            results, problem = [work(self.tokens)], ""
        except torch.OutOfMemoryError as error:
            results, problem = [], str(error) or "no memory left"
        if not self.decisions.retry(bool(problem)):
            return results, ""
        self._undo()
        return [], problem or "on another rank"
