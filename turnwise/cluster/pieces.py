"""Trajectories that travel while others are still being played.

The turns that an engine has played go to the driver in pieces, as parcels of one packer. When its work is done, the outcome brings the rest
only: the last turns, and what trajectories say of themselves. Pieces have no effect on any result; those that are lost, or belong to work
that was repeated, are not used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from turnwise.data.parcel import Packer, Parcel, Unpacker
from turnwise.data.rollouts import Trajectory

PAUSE = 0.0003  # seconds: the thread that plays gets Python's lock in between
_names = count()


@dataclass(frozen=True)
class Pace:
    """When pieces travel: `every` so many seconds, if there are a `few` turns. An answer without a piece comes after `longest` seconds."""

    every: float = 0.1
    few: int = 48
    longest: float = 2.0


@dataclass(frozen=True)
class Piece:
    """A parcel, as number `number` of its sending."""

    sending: int
    number: int
    parcel: Parcel


@dataclass(frozen=True)
class Rest:
    """The last parcel of a sending, after `pieces` others: it brings everything. `count` trajectories are the result; further ones had
    faults."""

    sending: int
    pieces: int
    count: int
    parcel: Parcel

    def unpacked(self) -> list[Trajectory]:
        """What was sent, if no piece came before."""
        return Arrival().complete(self)


class Sending:
    """What is sent of a call while it is played. One thread plays and calls `turned`; another one takes pieces."""

    def __init__(self, pace: Pace) -> None:
        self.name, self.pace = next(_names), pace
        self._over = threading.Event()
        self._one = threading.Lock()  # packs at a time
        self._packer = Packer(self._pause)
        self._grown: dict[int, Trajectory] = {}  # since the last piece, by their identity
        self._turns = self._pieces = 0

    def turned(self, trajectory: Trajectory) -> None:
        """A turn of this trajectory is complete."""
        self._grown[id(trajectory)] = trajectory
        self._turns += 1

    def piece(self) -> Piece | None:
        """Wait for the next piece. None: there is none in time, or the call was played to its end."""
        until = time.monotonic() + self.pace.longest
        while not self._over.wait(self.pace.every):
            if self._turns >= self.pace.few:
                return self._packed()
            if time.monotonic() > until:
                return None
        return None

    def _packed(self) -> Piece | None:
        with self._one:
            if self._over.is_set():
                return None
            grown, self._grown, self._turns = self._grown, {}, 0
            found = Piece(self.name, self._pieces, self._packer.pack([], list(grown.values())))
            self._pieces += 1
            return found

    def end(self) -> None:
        """The call was played to its end: what is being packed is packed at once."""
        self._over.set()

    def rest(self, value: Sequence[Trajectory], further: Sequence[Trajectory] = ()) -> Rest:
        """What is left to be sent of the result, and of further trajectories."""
        self.end()
        with self._one:
            for one in value:
                if one.turns and "seat" in one.turns[0].info:  # noted when the game was over, in every turn of it
                    self._packer.forget(one)
            return Rest(self.name, self._pieces, len(value), self._packer.pack([*value, *further]))

    def _pause(self) -> None:
        if not self._over.is_set():
            time.sleep(PAUSE)


class Arrival:
    """What has arrived of a member's work. `ask` asks its actor for the next piece, and returns a reference to wait for (`ref`), or None
    if there will be no further piece."""

    def __init__(self, ask: Callable[[], Any] = lambda: None) -> None:
        self.ask = ask
        self.ref: Any = None
        self.pieces = 0
        self._sending = -1
        self._unpacker = Unpacker()

    def awaited(self) -> Any:
        """The reference to the next piece."""
        if self.ref is None:
            self.ref = self.ask()
        return self.ref

    def take(self, piece: Piece) -> None:
        """The next piece has arrived. The first one of another sending drops what came before it."""
        if piece.sending != self._sending:
            self._sending, self.pieces, self._unpacker = piece.sending, 0, Unpacker()
        assert piece.number == self.pieces, "pieces come one after another"
        self._unpacker.unpack(piece.parcel)
        self.pieces += 1

    def lacks(self, rest: Rest) -> bool:
        """Whether a piece that the rest builds on has not arrived yet."""
        return rest.pieces > (self.pieces if rest.sending == self._sending else 0)

    def complete(self, rest: Rest) -> list[Trajectory]:
        """All trajectories, with the rest."""
        unpacker = self._unpacker if rest.pieces else Unpacker()
        return unpacker.unpack(rest.parcel)
