"""Gymnasium's spaces as text: what the agent writes becomes an action, and what the environment returns becomes text.

Only spaces whose actions can be named are taken. Continuous actions are left out on purpose: a language model that has to write twelve
decimal numbers needs a wrapper designed for it, not a guessed format.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from turnwise.util.errors import TurnwiseError

MOST_LISTED = 64  # combinations of a multi-discrete space beyond this are not listed in a prompt
MOST_NUMBERS = 64  # of an observation, before it needs a custom rendering


class Actions(Protocol):
    """The actions of one space."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """All actions, or None if they are not listed."""

    def read(self, text: str) -> Any:
        """The action that a text stands for; None if there is none."""


class Named:
    """A discrete space: one of n named actions. A number is also accepted."""

    def __init__(self, count: int, start: int, names: Sequence[str] | None, where: str):
        self.start = start
        self.names: tuple[str, ...] = tuple(names) if names is not None else tuple(str(start + i) for i in range(count))
        self._index = {_key(name): i for i, name in enumerate(self.names)}
        if len(self.names) != count or len(self._index) != count:
            raise TurnwiseError(f"{where}: action_names must be {count} different names, got {list(self.names)}")

    def read(self, text: str) -> int | None:
        word = _key(text)
        if word in self._index:
            return self.start + self._index[word]
        number = int(word) if re.fullmatch(r"-?\d{1,9}", word, re.ASCII) else None
        return number if number is not None and 0 <= number - self.start < len(self.names) else None

    def allowed(self, mask: Any) -> tuple[str, ...]:
        """The names that a mask of zeros and ones lets through; all if it fits no action or lets none through."""
        flags = np.asarray(mask).reshape(-1)
        kept = tuple(name for name, flag in zip(self.names, flags, strict=False) if flag)
        return kept if kept and len(flags) == len(self.names) else self.names


class Several:
    """A choice in each of several parts, as in `left, fire`: multi-discrete, multi-binary and tuples of discrete spaces."""

    def __init__(self, parts: Sequence[Named], pack: Callable[[list[int]], Any]):
        self.parts, self.pack = list(parts), pack
        size = math.prod(len(part.names) for part in self.parts)
        combined = itertools.product(*(part.names for part in self.parts)) if size <= MOST_LISTED else None
        self.names: tuple[str, ...] | None = tuple(", ".join(names) for names in combined) if combined else None

    def read(self, text: str) -> Any:
        words = [word for word in re.split(r"[,;\s]+" if "," not in text and ";" not in text else r"[,;]", text.strip("[]() \t\n")) if word]
        if len(words) != len(self.parts):
            return None
        chosen = [part.read(word) for part, word in zip(self.parts, words, strict=True)]
        return None if any(choice is None for choice in chosen) else self.pack([choice for choice in chosen if choice is not None])


class Free:
    """A text space: whatever the space contains."""

    names = None

    def __init__(self, contains: Callable[[str], bool]):
        self._contains = contains

    def read(self, text: str) -> str | None:
        text = text.strip()
        return text if self._contains(text) else None


def actions_of(space: Any, names: Sequence[Any] | None, where: str) -> Actions:
    """The actions of a Gymnasium space, with the user's names if they are given."""
    kind = type(space).__name__
    if kind == "Discrete":
        return Named(int(space.n), int(space.start), names, where)
    if kind == "MultiDiscrete":
        counts, shape, dtype = np.asarray(space.nvec).reshape(-1), np.asarray(space.nvec).shape, space.dtype
        starts = np.broadcast_to(np.asarray(getattr(space, "start", 0)), shape).reshape(-1)
        parts = [(int(count), int(start)) for count, start in zip(counts, starts, strict=True)]
        return Several(_parts(parts, names, where), lambda chosen: np.asarray(chosen, dtype).reshape(shape))
    if kind == "MultiBinary":
        shape = tuple(space.shape)
        return Several(_parts([(2, 0)] * int(np.prod(shape)), names, where), lambda chosen: np.asarray(chosen, np.int8).reshape(shape))
    if kind == "Tuple" and all(type(part).__name__ == "Discrete" for part in space.spaces):
        return Several(_parts([(int(part.n), int(part.start)) for part in space.spaces], names, where), tuple)
    if kind == "Text":
        return Free(space.contains)
    raise TurnwiseError(
        f"{where}: actions of {space} cannot be written as text. Discrete, MultiDiscrete, MultiBinary, Text and tuples of Discrete can;"
        " wrap the environment so that its actions are one of these"
    )


def _parts(sizes: Sequence[tuple[int, int]], names: Sequence[Any] | None, where: str) -> list[Named]:
    if names is not None and (len(names) != len(sizes) or any(isinstance(part, str) for part in names)):
        raise TurnwiseError(f"{where}: action_names must be {len(sizes)} lists of names, one per part of the action, got {names!r}")
    return [Named(count, start, None if names is None else names[i], where) for i, (count, start) in enumerate(sizes)]


def is_picture(space: Any) -> bool:
    """Whether observations of a space are pictures: bytes in height × width × 1, 3 or 4 colours."""
    shape = tuple(getattr(space, "shape", None) or ())
    return type(space).__name__ == "Box" and space.dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4)


def too_large(space: Any, name: str = "") -> list[str]:
    """The parts of a space that cannot be written down in a few numbers and words, with their names and shapes."""
    kind = type(space).__name__
    if kind in ("Dict", "Tuple"):
        inner = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
        return [found for key, part in inner for found in too_large(part, f"{name}.{key}" if name else str(key))]
    fits = kind != "Box" or int(np.prod(space.shape)) <= MOST_NUMBERS
    return [] if fits else [f"{name} {tuple(space.shape)}".strip()]


def words_of(value: Any) -> str:
    """An observation as text: numbers as they are, parts by their names."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {words_of(part)}" for name, part in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(words_of(part) for part in value)
    if isinstance(value, np.ndarray) and value.ndim:
        return " ".join(words_of(part) for part in value) if value.ndim == 1 else "\n".join(words_of(part) for part in value)
    if isinstance(value, float | np.floating) or (isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)):
        return f"{float(value):.4g}"
    return str(value)


def _key(text: str) -> str:
    return " ".join(text.casefold().split())
