"""Generated tasks: their randomness and their splits. Both come from BLAKE2b: the stream of a library's generator may change."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from turnwise.data.tasks import Task, TaskSet
from turnwise.util.errors import unknown_name

T = TypeVar("T")
SPLITS: Mapping[str, range] = {"train": range(6), "valid": range(6, 7), "test": range(7, 8)}  # of eight equal parts
DEFAULT_SIZES = {"train": 10_000, "valid": 1_000, "test": 1_000}


def part_of_all(key: str) -> int:
    """Which of eight equal parts something belongs to, by a hash of what must not be in two splits."""
    return blake2b(key.encode(), digest_size=8).digest()[0] % 8


def check_split(name: str, split: str) -> None:
    """An error for a split that generated tasks do not have."""
    if split not in DEFAULT_SIZES:
        raise unknown_name(f"split of {name}:", split, DEFAULT_SIZES)


def endless_tasks(name: str, split: str, n: int | None, make: Callable[[int], Task]) -> TaskSet:
    """The first `n` tasks of a split, each made on demand from its number."""
    check_split(name, split)
    return TaskSet.lazy(DEFAULT_SIZES[split] if n is None else n, make, f"{name}/{split}")


class Dice:
    """Numbers from a hash of a text: the same on every machine and with every version."""

    def __init__(self, seed: str):
        self._seed = blake2b(seed.encode(), digest_size=32).digest()
        self._block = 0
        self._left: list[int] = []

    def below(self, n: int) -> int:
        """A number from 0 to n − 1. 32 bits for small n: the bias is below one in a million."""
        if not self._left:
            drawn = blake2b(self._block.to_bytes(8, "big"), key=self._seed, digest_size=64).digest()
            self._left = list(struct.unpack(">16I", drawn))
            self._block += 1
        return self._left.pop() % n

    def between(self, pair: tuple[int, int]) -> int:
        return pair[0] + self.below(pair[1] - pair[0] + 1)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def weighted(self, weights: Mapping[T, int]) -> T:
        """A random option with probability proportional to its weight."""
        mark = self.below(sum(weights.values()))
        for option, weight in weights.items():
            mark -= weight
            if mark < 0:
                return option
        raise AssertionError("the mark lies below the sum of the weights")

    def shuffle(self, items: list[Any]) -> None:
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]
