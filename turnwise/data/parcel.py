"""Trajectories on their way to another process.

In a growing dialogue every prompt repeats the one before it: an iteration has millions of prompt tokens, of which a few percent are new.
A parcel holds the new ones only, and all tokens and log-probs as flat columns of numbers. What arrives shares integers between prompts,
just as what was sent did.

    parcel = Parcel.of(trajectories)      # to be pickled
    parcel.unpacked()                     # equal trajectories; what was one object is one object again
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.util.prefix import Prefix

NUMBERS = ("prompt_ids", "response_ids", "logprobs", "reports")  # of a turn: what travels in columns
TEXTS = tuple(field.name for field in fields(Turn) if field.name not in NUMBERS)
WHOLE = tuple(field.name for field in fields(Trajectory) if field.name != "turns")
_texts, _whole = attrgetter(*TEXTS), attrgetter(*WHOLE)


@dataclass(frozen=True)
class Parcel:
    """`trajectories` has, for each different one, what it says of itself and its turns as places in `turns`; `order` has the given ones as
    places in it. `turns` has the texts of each turn, how much of its prompt is known from the turn before, and the shapes of its numbers,
    which follow each other in `tokens` and `floats`."""

    order: list[int]
    trajectories: list[tuple[tuple[Any, ...], list[int]]]
    turns: list[tuple[Any, ...]]
    tokens: Any
    floats: Any

    @classmethod
    def of(cls, given: Iterable[Trajectory]) -> Parcel:
        """The parcel of these trajectories. A prompt is compared with the turn before, that of a first turn with the last trajectory's."""
        trajectories = list(given)
        different = {id(one): one for one in trajectories}
        order = {key: place for place, key in enumerate(different)}
        packer, opening = _Packer(), None
        rows = []
        for one in different.values():
            before = opening
            for turn in one.turns:
                packer.add(turn, before)
                before = turn
            opening = one.turns[0] if one.turns else None
            rows.append((_whole(one), [packer.places[id(turn)] for turn in one.turns]))
        return cls([order[id(one)] for one in trajectories], rows, packer.rows, _column("q", packer.tokens), _column("d", packer.floats))

    def unpacked(self) -> list[Trajectory]:
        """The trajectories."""
        tokens, floats = _Reader(self.tokens), _Reader(self.floats)
        turns: list[Turn] = []
        found: list[Trajectory] = []
        opening: Turn | None = None
        for whole, places in self.trajectories:
            before = opening
            for place in places:
                if place == len(turns):
                    turns.append(_turn(self.turns[place], before, tokens, floats))
                before = turns[place]
            own = [turns[place] for place in places]
            opening = own[0] if own else None
            found.append(Trajectory(**dict(zip(WHOLE, whole, strict=True)), turns=own))
        return [found[place] for place in self.order]


class _Packer:
    """Takes turns apart. `places` knows which row is whose."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.rows: list[tuple[Any, ...]] = []
        self.tokens: list[int] = []
        self.floats: list[float] = []

    def add(self, turn: Turn, before: Turn | None) -> None:
        if id(turn) in self.places:
            return
        self.places[id(turn)] = len(self.rows)
        prompt: Any = turn.prompt_ids
        kept = 0 if before is None else _repeated(prompt, before)
        asked, said = (
            _put(prompt[kept:] if kept or isinstance(prompt, Prefix) else prompt, self.tokens),
            _put(turn.response_ids, self.tokens),
        )
        drawn = _put(turn.logprobs, self.floats)
        measured = {name: _put(values, self.floats) for name, values in turn.reports.items()}
        self.rows.append((_texts(turn), kept, asked, said, drawn, measured))


class _Reader:
    """Takes sequences from a column in the order in which they were put there."""

    def __init__(self, column: Any):
        self._values: list[Any] = column if isinstance(column, list) else column.tolist()
        self._at = 0

    def take(self, shape: Any) -> Any:
        if type(shape) is not int:
            return shape
        count = shape if shape >= 0 else -1 - shape
        found = self._values[self._at : self._at + count]
        self._at += count
        return found if shape >= 0 else tuple(found)


def _put(sequence: Any, column: list[Any]) -> Any:
    """Put a list or tuple into a column. Returns its shape: n for a list of n numbers, -1 - n for a tuple; anything else is its own."""
    if type(sequence) not in (list, tuple):
        return sequence
    column += sequence
    return len(sequence) if type(sequence) is list else -1 - len(sequence)


def _column(kind: str, values: list[Any]) -> Any:
    """Numbers as an array, or as they are if there are others among them."""
    try:
        return np.frombuffer(array(kind, values), np.int64 if kind == "q" else np.float64) if values else values
    except (TypeError, OverflowError):
        return values


def _repeated(prompt: Any, before: Turn) -> int:
    """How many tokens of a prompt are those of the turn before it: of its prompt, then of its response."""
    last: Any = before.prompt_ids
    if isinstance(prompt, Prefix):
        if isinstance(last, Prefix) and (held := prompt.held(last, before.response_ids)):
            return held
        prompt = prompt.listed()
    last = last.listed() if isinstance(last, Prefix) else last
    if type(prompt) not in (list, tuple) or type(last) is not type(prompt):
        return 0
    known = _common(prompt, last)
    if known < len(last) or not isinstance(before.response_ids, (list, tuple)):
        return known
    said: Any = before.response_ids
    return known + _common(prompt[known : known + len(said)], type(prompt)(said))


def _common(left: Any, right: Any) -> int:
    """The length of the common beginning of two lists or two tuples."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == (right if len(right) == high else right[:high]):  # a copy less in the usual case
        return high
    while high - low > 1:  # they agree up to `low`, and not up to `high`
        middle = (low + high) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle)
    return low


def _turn(row: tuple[Any, ...], before: Turn | None, tokens: _Reader, floats: _Reader) -> Turn:
    texts, kept, prompt, response, logprobs, measured = row
    ids = tokens.take(prompt)
    if kept and before is not None:
        last: Any = before.prompt_ids
        begin = last if kept >= len(last) else last[:kept]
        ids = begin + type(last)([*before.response_ids[: kept - len(begin)], *ids])
    numbers = {"prompt_ids": ids, "response_ids": tokens.take(response), "logprobs": floats.take(logprobs)}
    reports = {name: floats.take(shape) for name, shape in measured.items()}
    return Turn(**dict(zip(TEXTS, texts, strict=True)), **numbers, reports=reports)
