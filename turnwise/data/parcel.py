"""Trajectories on their way to another process.

In a growing dialogue every prompt repeats the one before it: an iteration has millions of prompt tokens, of which a few percent are new.
A parcel holds the new ones only, and everything else that turns have as columns. What arrives shares integers between prompts, just as what
was sent did.

    parcel = Parcel.of(trajectories)      # to be pickled
    parcel.unpacked()                     # equal trajectories; what was one object is one object again

Trajectories can also be sent in several parcels, one after another: a `Packer` knows what it has packed, and an `Unpacker` that gets all
parcels of this packer, in order, knows it too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.util.prefix import common_length

NUMBERS = ("prompt_ids", "response_ids", "logprobs", "reports")  # of a turn: what travels in columns of numbers
FIELDS = tuple(field.name for field in fields(Turn))
TEXTS = tuple(name for name in FIELDS if name not in NUMBERS)
WHOLE = tuple(field.name for field in fields(Trajectory) if field.name != "turns")
_numbers, _whole = attrgetter(*NUMBERS), attrgetter(*WHOLE)


@dataclass(frozen=True)
class Parcel:
    """`order` has the given trajectories as places among all that were packed so far. `trajectories` has what each new one says of itself,
    and its turns as places among all turns. `texts` has a column for each of TEXTS with an entry per new turn. `shapes` has, per new turn,
    how much of its prompt is known from the turn before, and the shapes of its numbers: they follow each other in `tokens` and `floats`."""

    order: list[int]
    trajectories: list[tuple[tuple[Any, ...], list[int]]]
    texts: list[list[Any]]
    shapes: list[tuple[Any, ...]]
    tokens: Any
    floats: Any

    @classmethod
    def of(cls, given: Iterable[Trajectory]) -> Parcel:
        """The parcel of these trajectories."""
        return Packer().pack(given)

    def unpacked(self) -> list[Trajectory]:
        """The trajectories, if this is the only parcel of its packer."""
        return Unpacker().unpack(self)


class Packer:
    """Takes trajectories apart. A prompt is compared with the turn before, that of a first turn with the first of the last trajectory. What
    was packed is kept, because it is recognised as an object."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Trajectory]] = {}
        self._places: dict[int, tuple[int, Turn]] = {}
        self._opening: list[int] = []

    def pack(self, given: Iterable[Trajectory]) -> Parcel:
        trajectories, tokens, floats = list(given), list[int](), list[float]()
        new: list[Turn] = []
        shapes: list[tuple[Any, ...]] = []
        rows = []
        for one in trajectories:
            if id(one) not in self._known:
                self._known[id(one)] = len(self._known), one
                rows.append((_whole(one), self._turns(one, new, shapes, tokens, floats)))
        texts = [[getattr(turn, name) for turn in new] for name in TEXTS]
        order = [self._known[id(one)][0] for one in trajectories]
        return Parcel(order, rows, texts, shapes, _column("q", tokens), _column("d", floats))

    def _turns(self, one: Trajectory, new: list[Turn], shapes: list[Any], tokens: list[int], floats: list[float]) -> list[int]:
        """The places of a trajectory's turns, after those that are new were packed."""
        grown, places = self._opening.copy(), []
        for turn in one.turns:
            if (known := self._places.get(id(turn))) is not None:
                places.append(known[0])
                grown = _listed(turn.prompt_ids) + _listed(turn.response_ids)
                continue
            places.append(len(self._places))
            self._places[id(turn)] = len(self._places), turn
            new.append(turn)
            prompt, response, logprobs, reports = _numbers(turn)
            kept, asked = _put_prompt(prompt, grown, tokens)
            if len(places) == 1:
                self._opening = grown.copy()
            said = _put(response, tokens)
            if type(said) is int:
                grown += response
            drawn = _put(logprobs, floats)
            measured = {name: _put(values, floats) for name, values in reports.items()} if reports else None
            shapes.append((kept, asked, said, drawn, measured))
        return places


class Unpacker:
    """Puts together what a packer took apart, and knows it as the packer does."""

    def __init__(self) -> None:
        self._known: list[Trajectory] = []
        self._places: list[Turn] = []
        self._opening: list[int] = []

    def unpack(self, parcel: Parcel) -> list[Trajectory]:
        values = {**dict(zip(TEXTS, parcel.texts, strict=True)), **self._read(parcel)}
        self._places += map(Turn, *(values[name] for name in FIELDS))
        for whole, places in parcel.trajectories:
            turns = [self._places[place] for place in places]
            self._known.append(Trajectory(**dict(zip(WHOLE, whole, strict=True)), turns=turns))
        return [self._known[place] for place in parcel.order]

    def _read(self, parcel: Parcel) -> dict[str, list[Any]]:
        """The numbers of all new turns, as columns."""
        columns: dict[str, list[Any]] = {name: [] for name in NUMBERS}
        prompts, responses, logprobs, reports = (columns[name].append for name in NUMBERS)
        tokens, floats, begins = _Reader(parcel.tokens), _Reader(parcel.floats), len(self._places)
        for _, places in parcel.trajectories:
            grown = self._opening.copy()
            for t, place in enumerate(places):
                if (own := place - begins) < len(columns["reports"]):  # known from another trajectory
                    known = _numbers(self._places[place]) if own < 0 else [column[own] for column in columns.values()]
                    grown = _listed(known[0]) + _listed(known[1])
                    continue
                kept, asked, said, drawn, measured = parcel.shapes[own]
                prompts(_grow(grown, kept, asked, tokens))
                if t == 0:
                    self._opening = grown.copy()
                response = tokens.take(said)
                if type(said) is int:
                    grown += response
                responses(response)
                logprobs(floats.take(drawn))
                reports({} if measured is None else {name: floats.take(shape) for name, shape in measured.items()})
        return columns


class _Reader:
    """Takes sequences from a column in the order in which they were put there."""

    def __init__(self, column: Any):
        self._values: list[Any] = column if isinstance(column, list) else column.tolist()
        self._at = 0

    def take(self, shape: Any) -> Any:
        if type(shape) is not int:
            return shape
        start, self._at = self._at, self._at + (shape if shape >= 0 else -1 - shape)
        found = self._values[start : self._at]
        return found if shape >= 0 else tuple(found)


def _put(sequence: Any, column: list[Any]) -> Any:
    """Put a list or tuple into a column. Returns its shape: n for a list of n numbers, -1 - n for a tuple; anything else is its own."""
    if type(sequence) not in (list, tuple):
        return sequence
    column += sequence
    return len(sequence) if type(sequence) is list else -1 - len(sequence)


def _put_prompt(prompt: Any, grown: list[int], column: list[Any]) -> tuple[int, Any]:
    """Make `grown` (the turn before: its prompt and its response) this prompt, and put what is new into a column. Returns how much was
    known, and the shape of the rest."""
    if type(prompt) not in (list, tuple):
        grown.clear()
        return 0, prompt
    ids = prompt if type(prompt) is list else list(prompt)
    kept = len(grown)
    rest = ids[kept:]
    grown += rest
    if grown != ids:  # it does not only grow; that is compared as a whole because a slice would count a reference to each integer
        kept = common_length(grown[:kept], ids)
        rest = ids[kept:]
        grown[kept:] = rest
    return kept, _put(rest if ids is prompt else tuple(rest), column)


def _grow(grown: list[int], kept: int, shape: Any, tokens: _Reader) -> Any:
    """The same on arrival: make `grown` the next prompt. Returns that prompt."""
    rest = tokens.take(shape)
    if type(shape) is not int:
        grown.clear()
        return rest
    grown[kept:] = rest
    return grown.copy() if shape >= 0 else tuple(grown)


def _listed(ids: Any) -> list[int]:
    """Tokens as a list of its own; none if they travel as something else."""
    return [*ids] if type(ids) in (list, tuple) else []


def _column(kind: str, values: list[Any]) -> Any:
    """Numbers as an array, or as they are if there are others among them."""
    try:
        return np.frombuffer(array(kind, values), np.int64 if kind == "q" else np.float64) if values else values
    except (TypeError, OverflowError):
        return values
