"""Random access to the lines of a packed file of trajectories.

A gzip stream can only be read from its start, so one pass is needed; during it the state of the decompressor is kept at every chunk of
input. A line is then read from the nearest state before it: one trajectory costs one chunk, however large the file, and the unpacked
texts are never all in memory.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise.pages.goals import add_goal
from turnwise.util.errors import TurnwiseError
from turnwise.util.unpack import LONGEST_LINE, limit_of, too_much

CHUNK = 1 << 16
GZIP = 31  # zlib's setting for a stream with gzip's header
TURNS = b', "turns": ['  # cannot occur inside a JSON text, where quotes are escaped
PIECE = 1 << 22  # unpacked at once: a few packed bytes can expand to very many
MOST_LINES = 1_000_000


class PackedLines:
    """The lines of a gzip file: `heads` (each line's values without its turns, and its goal), and any line by its number."""

    def __init__(self, path: Path):
        self.path = path
        self.heads: list[dict[str, Any]] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._states: list[tuple[int, int, Any]] = []  # offset in the unpacked text, offset in the file, decompressor
        place = 0
        for line in self._scan(keep=True):
            self._starts.append(place)
            self._ends.append(place + len(line))
            place += len(line) + 1
            self.heads.append(self._head(line))
            if len(self.heads) > MOST_LINES:
                raise TurnwiseError(f"{self.path}: more than {MOST_LINES:,} attempts in one iteration")

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[bytes]:
        """All lines, one after another, with one of them in memory."""
        return self._scan(keep=False)

    def line(self, number: int) -> bytes:
        """One line."""
        start, end = self._starts[number], self._ends[number]
        text, place, state = self._states[bisect_right(self._states, start, key=lambda known: known[0]) - 1]
        unpacker, parts, length = state.copy(), [], text
        with self.path.open("rb") as file:
            file.seek(place)
            while length < end and (chunk := file.read(CHUNK)):
                for data in _unpacked(unpacker, chunk):
                    parts.append(data)
                    length += len(data)
                    if length >= end:
                        break
        return b"".join(parts)[start - text : end - text]

    def read(self, number: int) -> dict[str, Any]:
        """One trajectory, as plain data."""
        return self.parse(self.line(number))

    def parse(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError):
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("turns"), list):
            raise TurnwiseError(f"{self.path}: damaged, a line is not a trajectory")
        return found

    def _head(self, line: bytes) -> dict[str, Any]:
        """A line's values without its turns; the turns, by far the most of it, are not even parsed."""
        cut = line.find(TURNS)
        try:
            head = json.loads(line[:cut] + b"}") if cut > 0 else None
        except (json.JSONDecodeError, UnicodeDecodeError):
            head = None
        if not isinstance(head, dict):  # written by another program, in another order
            whole = self.parse(line)
            head = {key: value for key, value in whole.items() if key != "turns"}
            add_goal(head, json.dumps(whole["turns"][:1]).encode()[1:])
        else:
            add_goal(head, line[cut + len(TURNS) :])
        return head

    def _scan(self, keep: bool) -> Iterator[bytes]:
        unpacker, rest, text, place = zlib.decompressobj(GZIP), b"", 0, 0
        limit = limit_of(self.path) if self.path.exists() else 0
        try:
            with self.path.open("rb") as file:
                while True:
                    if keep:
                        self._states.append((text, place, unpacker.copy()))
                    chunk = file.read(CHUNK)
                    if not chunk:
                        break
                    place += len(chunk)
                    for data in _unpacked(unpacker, chunk):
                        text += len(data)
                        *lines, rest = (rest + data).split(b"\n")
                        if text > limit:
                            raise too_much(self.path, limit)
                        if len(rest) > LONGEST_LINE:
                            raise TurnwiseError(f"{self.path}: a line of more than {LONGEST_LINE:,} bytes")
                        yield from lines
        except (OSError, zlib.error) as error:
            raise TurnwiseError(f"{self.path}: cannot be unpacked ({error}); the file was damaged after it was written") from None
        if not unpacker.eof:
            raise TurnwiseError(f"{self.path}: ends too early; the file was damaged after it was written")
        if rest:
            yield rest


def _unpacked(unpacker: Any, chunk: bytes) -> Iterator[bytes]:
    """A chunk unpacked, in parts of a bounded size."""
    full = True
    while not unpacker.eof and (chunk or full):
        data = unpacker.decompress(chunk, PIECE)
        chunk, full = unpacker.unconsumed_tail, len(data) == PIECE  # after a full part there may be more
        yield data
