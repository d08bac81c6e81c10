"""The attempts in a packed file of trajectories: what each is about, and its texts, which stay packed until they are asked for.

A run stores the goal that the agent was given next to the task's id. Older runs, and environments without a goal, still have the first
observation: its line "Your task is …" if there is one, and otherwise its beginning, which at least distinguishes tasks.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise.data.images import without_marks
from turnwise.data.tasks import task_line
from turnwise.util.errors import TurnwiseError
from turnwise.util.unpack import packed_lines

MOST_LINES = 1_000_000
LONGEST_GOAL = 600
LONGEST_OPENING = 160
PREFIX = re.compile(r"your task is( to)?\b[\s:]*", re.IGNORECASE)


class PackedLines:
    """The trajectories of a gzip file: `heads` has each without its turns, and any of them is read by its number."""

    def __init__(self, path: Path):
        self.path = path
        self.heads: list[dict[str, Any]] = []
        self._lines: list[bytes] = []  # each packed alone: all texts of an iteration may be large
        try:
            for line in packed_lines(path):
                self._lines.append(zlib.compress(line, 1))
                self.heads.append(head_of(self._parse(line)))
                if len(self.heads) > MOST_LINES:
                    raise TurnwiseError(f"{self.path}: more than {MOST_LINES:,} attempts in one iteration")
        except (EOFError, OSError, zlib.error) as error:
            raise TurnwiseError(f"{self.path}: cannot be unpacked ({error}); the file was damaged after it was written") from None

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All trajectories, with one of them in memory."""
        return map(self.read, range(len(self)))

    def read(self, number: int) -> dict[str, Any]:
        """One trajectory, as plain data."""
        return self._parse(zlib.decompress(self._lines[number]))

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError:  # not JSON, or not UTF-8
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("turns"), list):
            raise TurnwiseError(f"{self.path}: damaged, a line is not a trajectory")
        return record


def head_of(record: dict[str, Any]) -> dict[str, Any]:
    """A trajectory without its turns: with their number, how many are invalid, and its `goal` or how its first observation begins."""
    turns = [turn for turn in record["turns"] if isinstance(turn, dict)]
    first = str(turns[0].get("observation", "")) if turns else ""
    stated = record.get("goal")
    goal = stated if isinstance(stated, str) and stated.strip() else task_line(first)
    opening = shortened(" ".join(without_marks(first, "[picture]").split()), LONGEST_OPENING)
    return record | {
        "turns": len(turns),
        "invalid": sum(not turn.get("valid", True) for turn in turns),
        "goal": sentence(goal) if goal else None,
        "opening": None if goal else opening or None,
    }


def sentence(goal: str) -> str:
    """A goal for display: without "Your task is to", on one line, shortened."""
    words = " ".join(PREFIX.sub("", goal.strip(), count=1).split()) or goal.strip()
    return shortened(words[:1].upper() + words[1:], LONGEST_GOAL)


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
