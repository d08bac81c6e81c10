"""Boxoban: the rooms of the public level files, 10 × 10 with four boxes.

The files are in `hard/`, `medium/<split>/` and `unfiltered/<split>/`, as plain text or packed with xz; a room is a line `; NUMBER` and
the lines under it. The hard rooms have no official split: they are split by the last digit of their number in the file, 0 to 7 train, 8
valid, 9 test.
"""

from __future__ import annotations

import lzma
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.needs import find_folder
from turnwise.envs.sokoban.env import Anchor, Observed, SokobanEnv
from turnwise.envs.sokoban.generator import GOAL
from turnwise.envs.sokoban.pictures import TILE
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.unpack import open_packed

LEVELS = ("medium", "unfiltered", "hard")
HARD_SPLITS: Mapping[str, str] = {"train": "01234567", "valid": "8", "test": "9"}
MAX_TURNS = 120  # gym-sokoban's limit for rooms of this size


class BoxobanEnv(SokobanEnv):
    """Boxoban's rooms. `level`: "medium", "unfiltered" or "hard"; `data`: the folder that has them, by default looked for in
    `$TURNWISE_DATA/sokoban`, `$BOXOBAN_DATA` and `~/.cache/boxoban-levels`. The other options are those of `SokobanEnv`."""

    max_turns = MAX_TURNS

    def __init__(
        self,
        level: str = "medium",
        data: str | os.PathLike[str] | None = None,
        observe: Observed = "text",
        anchor: Anchor = "observation",
        tile: int = TILE,
    ):
        super().__init__(observe, anchor, tile)
        if level not in LEVELS:
            raise unknown_name("level of boxoban:", str(level), LEVELS)
        self.level = level
        folder = find_data() if data is None else Path(data).expanduser()
        if not _has_rooms(folder):
            raise TurnwiseError(f"{folder}: no Boxoban rooms there. {_EXPECTED}")
        self.folder = folder.resolve()

    def tasks(self, split: str = "train") -> TaskSet:
        """The rooms of a split, in the order of the files."""
        return _tasks(self.folder, self.level, split)


def splits(folder: Path, level: str = "medium") -> list[str]:
    """The splits that a folder has of a level."""
    if level == "hard":
        return [split for split in HARD_SPLITS if _files(folder / "hard")]
    return [split for split in ("train", "valid", "test") if _files(folder / level / split)]


@lru_cache(maxsize=16)
def _tasks(folder: Path, level: str, split: str) -> TaskSet:
    if split not in (known := splits(folder, level)):
        raise unknown_name(f"split of boxoban's {level} rooms in {folder}:", split, known)
    place = folder / level if level == "hard" else folder / level / split
    found: dict[str, Task] = {}
    for file in _files(place):
        stem = file.name.partition(".")[0]
        for number, text in rooms(file):
            if level != "hard" or number[-1] in HARD_SPLITS[split]:
                task = Task(f"{level}/{split}/{stem}/{number}", split, {"goal": GOAL, "room": text})
                found.setdefault(text, task)
    return TaskSet(found.values(), f"boxoban {level}/{split}")


def rooms(file: Path) -> Iterator[tuple[str, str]]:
    """The rooms of a file: number and letters. They are checked when they are played."""
    try:
        with open_packed(file) as stream:
            text = stream.read().decode()
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise TurnwiseError(f"{file}: this level file cannot be read: {error}. Get it again") from None
    number, lines = "", list[str]()
    for place, line in enumerate([*text.splitlines(), ";"], 1):
        if not line.startswith(";"):
            lines.append(line)
            continue
        if room := "\n".join(lines).strip("\n"):
            if not number.isdecimal():
                raise TurnwiseError(f"{file}, line {place}: a room must stand under a line '; NUMBER', got {number!r}")
            yield number, room
        number, lines = line[1:].strip(), []


def _files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.txt"), *folder.glob("*.txt.xz")])


def _has_rooms(place: Path) -> bool:
    return any(splits(place, level) for level in LEVELS)


_EXPECTED = (
    "Expected hard/*.txt, medium/<split>/*.txt or unfiltered/<split>/*.txt (or .txt.xz), as in the repository boxoban-levels. "
    "Clone it to ~/.cache/boxoban-levels; elsewhere: set BOXOBAN_DATA to the folder, or pass data=…"
)


def find_data() -> Path:
    """The first of the usual folders that has rooms."""
    return find_folder("Boxoban's rooms", _has_rooms, "sokoban", "boxoban-levels", "BOXOBAN_DATA", _EXPECTED).resolve()
