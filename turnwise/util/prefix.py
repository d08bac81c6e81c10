"""The common prefix of two lists of tokens, used by engines, packing and token files for every prompt of a growing dialogue.

It uses plain lists, because prompts are lists, and converting one to an array takes several times as long as comparing it. The integers
in two prompts of one dialogue are the same objects, which Python compares by identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, overload

import numpy as np


class Prefix(Sequence[int]):
    """The first tokens of a list that only grows. All prompts of a dialogue share one list, which is then not copied for each of them. It
    reads like a list. Prompts that travel to another process together travel as one list, and share it there."""

    __slots__ = ("size", "whole")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, whole: list[int], size: int | None = None):
        """The first `size` tokens; without it, all that the list has now."""
        self.whole, self.size = whole, len(whole) if size is None else size

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self.size)
            return self.whole[start:stop:step] if step > 0 else self.listed()[index]
        if not -self.size <= index < self.size:
            raise IndexError("prompt index out of range")
        return self.whole[index if index >= 0 else index + self.size]

    def __iter__(self) -> Iterator[int]:
        return islice(self.whole, self.size)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Prefix) and other.whole is self.whole:
            return other.size == self.size
        if not isinstance(other, (list, tuple, Prefix)):
            return NotImplemented
        return len(other) == self.size and self.listed() == list(other)

    def __add__(self, other: Sequence[int]) -> list[int]:
        return [*self, *other]

    def __radd__(self, other: Sequence[int]) -> list[int]:
        return [*other, *self]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.listed(), dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefix, (self.whole, self.size)

    def __repr__(self) -> str:
        return repr(self.listed())

    def listed(self) -> list[int]:
        """A list of its own."""
        return self.whole[: self.size]

    def held(self, before: Prefix, response: Sequence[int]) -> int:
        """How many tokens a turn had, prompt and response, if this prompt begins with all of them; otherwise 0."""
        end = before.size + len(response)
        if end > self.size:
            return 0
        same = before.whole is self.whole or self.whole[: before.size] == before.listed()
        return end if same and self.whole[before.size : end] == list(response) else 0


def common_length(first: list[int], second: list[int]) -> int:
    """The length of the common prefix of two lists. Whole slices are compared, which is fast if they are equal."""
    low, high = 0, min(len(first), len(second))
    if (first if len(first) == high else first[:high]) == (second if len(second) == high else second[:high]):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


def extend_to(grown: list[int], longer: list[int]) -> bool:
    """Make `grown` equal to `longer`, if it is a prefix of that; otherwise leave it as it is and return False. It is extended first and
    compared as a whole: a slice would count a reference to each of its integers, which takes ten times as long as comparing them."""
    before = len(grown)
    grown += longer[before:]
    if grown == longer:
        return True
    del grown[before:]
    return False
