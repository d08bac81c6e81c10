"""Trajectories that travel in chunks while others are still being played.

The turns that an engine has played go to the driver in chunks, as messages of one encoder. When its work is done, the outcome brings the
last chunk: the last turns, and the outcomes of trajectories. Chunks have no effect on any result; those that are lost, or belong to work
that was repeated, are not used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from turnwise.data.message import Decoder, Encoder, Message
from turnwise.data.rollouts import Trajectory

PAUSE = 0.0003  # seconds: the thread that plays gets Python's lock in between
_numbers = count()


@dataclass(frozen=True)
class Pace:
    """When chunks travel: `every` so many seconds, if there are a `few` turns. An answer without a chunk comes after `longest` seconds."""

    every: float = 0.1
    few: int = 48
    longest: float = 2.0


@dataclass(frozen=True)
class Chunk:
    """A message, as number `number` of its sender."""

    sender: int
    number: int
    message: Message


@dataclass(frozen=True)
class LastChunk:
    """The last message of a sender, after `chunks` others: it delivers everything. `count` trajectories are the result; further ones had
    faults."""

    sender: int
    chunks: int
    count: int
    message: Message


class ChunkSender:
    """Sends the trajectories of a call while it is played. One thread plays and calls `turned`; another one takes chunks."""

    def __init__(self, pace: Pace) -> None:
        self.number, self.pace = next(_numbers), pace
        self._over = threading.Event()
        self._encoding = threading.Lock()
        self._encoder = Encoder(self._pause)
        self._grown: dict[int, Trajectory] = {}  # since the last chunk, by their identity
        self._turns = self._chunks = 0

    def turned(self, trajectory: Trajectory) -> None:
        """A turn of this trajectory is complete."""
        self._grown[id(trajectory)] = trajectory
        self._turns += 1

    def chunk(self) -> Chunk | None:
        """Wait for the next chunk. None: there is none in time, or the call was played to its end."""
        until = time.monotonic() + self.pace.longest
        while not self._over.wait(self.pace.every):
            if self._turns >= self.pace.few:
                return self._encoded()
            if time.monotonic() > until:
                return None
        return None

    def _encoded(self) -> Chunk | None:
        with self._encoding:
            if self._over.is_set():
                return None
            grown, self._grown, self._turns = self._grown, {}, 0
            chunk = Chunk(self.number, self._chunks, self._encoder.encode([], list(grown.values())))
            self._chunks += 1
            return chunk

    def end(self) -> None:
        """The call was played to its end: what is being encoded is encoded without pauses."""
        self._over.set()

    def last(self, result: Sequence[Trajectory], faulted: Sequence[Trajectory] = ()) -> LastChunk:
        """What is left to be sent of the result, and of trajectories that had faults."""
        self.end()
        with self._encoding:
            for trajectory in result:
                if trajectory.turns and "seat" in trajectory.turns[0].info:  # noted when the game was over, in every turn of it
                    self._encoder.forget(trajectory)
            return LastChunk(self.number, self._chunks, len(result), self._encoder.encode([*result, *faulted]))

    def _pause(self) -> None:
        if not self._over.is_set():
            time.sleep(PAUSE)


class ChunkReceiver:
    """What has arrived of a member's work. `ask` asks its actor for the next chunk, and returns a reference to wait for (`ref`), or None
    if there will be no further chunk."""

    def __init__(self, ask: Callable[[], Any] = lambda: None) -> None:
        self.ask = ask
        self.ref: Any = None
        self.chunks = 0
        self._sender = -1
        self._decoder = Decoder()

    def awaited(self) -> Any:
        """The reference to the next chunk."""
        if self.ref is None:
            self.ref = self.ask()
        return self.ref

    def take(self, chunk: Chunk) -> None:
        """The next chunk has arrived. The first one of another sender drops what came before it."""
        if chunk.sender != self._sender:
            self._sender, self.chunks, self._decoder = chunk.sender, 0, Decoder()
        assert chunk.number == self.chunks, "chunks come one after another"
        self._decoder.decode(chunk.message)
        self.chunks += 1

    def lacks(self, last: LastChunk) -> bool:
        """Whether a chunk that the last one builds on has not arrived yet."""
        return last.chunks > (self.chunks if last.sender == self._sender else 0)

    def complete(self, last: LastChunk) -> list[Trajectory]:
        """All trajectories, with the last chunk."""
        decoder = self._decoder if last.chunks else Decoder()
        return decoder.decode(last.message)
