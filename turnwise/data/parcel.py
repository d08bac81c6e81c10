"""Trajectories on their way to another process.

In a growing dialogue every prompt repeats the one before it: an iteration has millions of prompt tokens, of which a few percent are new.
A parcel holds the new ones only, and everything else that turns have as columns. What arrives shares its tokens as what was sent did:
prompts that are the beginnings of one list (`Prefix`) are so again, and others share their integers.

    parcel = Parcel.of(trajectories)      # to be pickled
    parcel.unpacked()                     # equal trajectories; what was one object is one object again

Trajectories can also be sent in several parcels, one after another, and while they still grow: a `Packer` knows what it has packed, and an
`Unpacker` that gets all parcels of this packer, in order, knows it too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.util.prefix import Prefix, common_length

NUMBERS = ("prompt_ids", "response_ids", "logprobs", "reports")  # of a turn: what travels in columns of numbers
FIELDS = tuple(field.name for field in fields(Turn))
TEXTS = tuple(name for name in FIELDS if name not in NUMBERS)
WHOLE = tuple(field.name for field in fields(Trajectory) if field.name != "turns")
BREATH = 16  # turns that are packed between two pauses
_numbers, _texts, _whole = attrgetter(*NUMBERS), attrgetter(*TEXTS), attrgetter(*WHOLE)


@dataclass(frozen=True)
class Parcel:
    """`order` has the given trajectories as places among all that were packed so far. `parts` has the place of every trajectory with
    something new, and its further turns as places among all turns; `ends` has what a complete one says of itself, after its place. `texts`
    has a column for each of TEXTS with an entry per new turn. `shapes` has, per new turn, how its prompt begins and the shapes of its
    numbers: they follow each other in `tokens` and `floats`."""

    order: list[int]
    parts: list[tuple[int, list[int]]]
    ends: list[tuple[int, tuple[Any, ...]]]
    texts: list[tuple[Any, ...]]
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


@dataclass(slots=True)
class _Packed:
    """What was packed of a trajectory."""

    place: int
    trajectory: Trajectory
    turns: int = 0
    complete: bool = False


@dataclass(slots=True)
class _Shared:
    """What was packed of a list whose beginnings are prompts."""

    place: int
    whole: list[int]
    size: int = 0


class Packer:
    """Takes trajectories apart. A prompt is compared with the turn before, that of a first turn with the first of the last trajectory. What
    was packed is kept, because it is recognised as an object. `pause` is called between small pieces of the work."""

    def __init__(self, pause: Callable[[], object] = lambda: None) -> None:
        self.pause = pause
        self._packed: dict[int, _Packed] = {}
        self._places: dict[int, tuple[int, Turn]] = {}
        self._shared: dict[int, _Shared] = {}
        self._trajectories = self._turns = 0  # that have a place
        self._opening: list[int] = []

    def pack(self, given: Iterable[Trajectory], growing: Iterable[Trajectory] = ()) -> Parcel:
        """The parcel that brings what was given. The turns that `growing` ones have so far travel with it."""
        complete, new = list(given), _New()
        parts, ends = [(known.place, self._part(known, new)) for known in map(self._know, growing)], []
        for one in complete:
            if not (known := self._know(one)).complete:
                parts.append((known.place, self._part(known, new)))
                ends.append((known.place, _whole(one)))
                known.complete = True
        texts = list(zip(*map(_texts, new.turns), strict=True)) if new.turns else [()] * len(TEXTS)
        order = [self._packed[id(one)].place for one in complete]
        return Parcel(order, parts, ends, texts, new.shapes, _column("q", new.tokens), _column("d", new.floats))

    def forget(self, one: Trajectory) -> None:
        """What was packed of a trajectory does not count: it was changed since."""
        if self._packed.pop(id(one), None) is not None:
            for turn in one.turns:
                self._places.pop(id(turn), None)

    def _know(self, one: Trajectory) -> _Packed:
        known = self._packed.get(id(one))
        if known is None:
            known = self._packed[id(one)] = _Packed(self._trajectories, one)
            self._trajectories += 1
        return known

    def _part(self, known: _Packed, new: _New) -> list[int]:
        """The places of a trajectory's further turns, after those that are new were packed."""
        turns, places = known.trajectory.turns, list[int]()
        grown = None  # the tokens of the turn before, where they are compared
        for t in range(known.turns, len(turns)):
            turn = turns[t]
            if (seen := self._places.get(id(turn))) is not None:
                places.append(seen[0])
                grown = None
                continue
            places.append(self._turns)
            self._places[id(turn)] = self._turns, turn
            self._turns += 1
            prompt, response, logprobs, reports = _numbers(turn)
            begins: Any
            if type(prompt) is Prefix:
                begins, asked = self._put_shared(prompt, new.tokens)
                grown = None
            else:
                if grown is None:
                    grown = _joined(turns[t - 1].prompt_ids, turns[t - 1].response_ids) if t else self._opening.copy()
                begins, asked = _put_prompt(prompt, grown, new.tokens)
            if t == 0:
                self._opening = _listed(prompt)
            said = _put(response, new.tokens)
            if grown is not None and type(said) is int:
                grown += response
            drawn = _put(logprobs, new.floats)
            measured = {name: _put(values, new.floats) for name, values in reports.items()} if reports else None
            new.add(turn, (begins, asked, said, drawn, measured))
            if not len(new.turns) % BREATH:
                self.pause()
        known.turns += len(places)
        return places

    def _put_shared(self, prompt: Prefix, tokens: list[int]) -> tuple[tuple[int, int, int], int]:
        """Put what is new of a shared list into a column. Returns the list's place, how much of it is the last opening and how long the
        prompt is, and how much is new."""
        shared, kept = self._shared.get(id(prompt.whole)), 0
        if shared is None:
            shared = self._shared[id(prompt.whole)] = _Shared(len(self._shared), prompt.whole)
            shared.size = kept = common_length(self._opening, prompt.listed())
        rest = prompt.whole[shared.size : prompt.size]
        tokens += rest
        shared.size += len(rest)
        return (shared.place, kept, prompt.size), len(rest)


class _New:
    """What a parcel brings of turns."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.shapes: list[tuple[Any, ...]] = []
        self.tokens: list[int] = []
        self.floats: list[float] = []

    def add(self, turn: Turn, shape: tuple[Any, ...]) -> None:
        self.turns.append(turn)
        self.shapes.append(shape)


class Unpacker:
    """Puts together what a packer took apart, and knows it as the packer does."""

    def __init__(self) -> None:
        self._known: dict[int, Trajectory] = {}
        self._turns: list[list[Turn]] = []  # of every trajectory, complete or not
        self._places: list[Turn] = []
        self._shared: list[list[int]] = []
        self._opening: list[int] = []

    def unpack(self, parcel: Parcel) -> list[Trajectory]:
        """The trajectories that the parcel was made to bring."""
        size = max((place + 1 for place, _ in parcel.parts), default=0)
        self._turns += [[] for _ in range(len(self._turns), size)]
        values = {**dict(zip(TEXTS, parcel.texts, strict=True)), **self._read(parcel)}
        self._places += map(Turn, *(values[name] for name in FIELDS))
        for place, places in parcel.parts:
            self._turns[place] += [self._places[turn] for turn in places]
        for place, whole in parcel.ends:
            self._known[place] = Trajectory(**dict(zip(WHOLE, whole, strict=True)), turns=self._turns[place])
        return [self._known[place] for place in parcel.order]

    def _read(self, parcel: Parcel) -> dict[str, list[Any]]:
        """The numbers of all new turns, as columns."""
        columns: dict[str, list[Any]] = {name: [] for name in NUMBERS}
        prompts, responses, logprobs, reports = (columns[name].append for name in NUMBERS)
        tokens, floats, begins = _Reader(parcel.tokens), _Reader(parcel.floats), len(self._places)
        for whose, places in parcel.parts:
            before, grown = len(self._turns[whose]), None
            last: Any = _numbers(self._turns[whose][-1]) if before else None
            for t, place in enumerate(places, before):
                if (own := place - begins) < len(columns["reports"]):  # known from another trajectory
                    last = _numbers(self._places[place]) if own < 0 else [column[own] for column in columns.values()]
                    grown = None
                    continue
                where, asked, said, drawn, measured = parcel.shapes[own]
                prompt: Any
                if type(where) is tuple:
                    prompt = self._grow_shared(where, tokens.take(asked))
                    grown = None
                else:
                    if grown is None:
                        grown = _joined(last[0], last[1]) if t else self._opening.copy()
                    prompt = _grow(grown, where, asked, tokens)
                if t == 0:
                    self._opening = _listed(prompt)
                response = tokens.take(said)
                if grown is not None and type(said) is int:
                    grown += response
                prompts(prompt)
                responses(response)
                logprobs(floats.take(drawn))
                reports({} if measured is None else {name: floats.take(shape) for name, shape in measured.items()})
                last = prompt, response
        return columns

    def _grow_shared(self, where: tuple[int, int, int], rest: list[int]) -> Prefix:
        """The first tokens of a list, which has more of them now."""
        place, kept, size = where
        if place == len(self._shared):
            self._shared.append(self._opening[:kept])
        whole = self._shared[place]
        whole += rest
        return Prefix(whole, size)


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
    return [*ids] if type(ids) in (list, tuple, Prefix) else []


def _joined(prompt: Any, response: Any) -> list[int]:
    """The tokens of a turn."""
    return _listed(prompt) + _listed(response)


def _column(kind: str, values: list[Any]) -> Any:
    """Numbers as an array, or as they are if there are others among them."""
    try:
        return np.frombuffer(array(kind, values), np.int64 if kind == "q" else np.float64) if values else values
    except (TypeError, OverflowError):
        return values
