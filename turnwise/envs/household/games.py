"""Finding and reading ALFWorld's game files.

Two forms: the official tree `json_2.1.1/<split>/<task>/<trial>/game.tw-pddl`, and a packed folder (`<split>.jsonl.xz`, one game per line,
with the parts that games share in `shared.json`). A library lists a split without parsing the games, and reads a game when it is played.
One damaged file or line loses one game: it is named in a warning and in `damaged`, and the others load.
"""

from __future__ import annotations

import json
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from turnwise.envs.household.grammar import split_task
from turnwise.envs.household.house import TASK_TYPES
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.files import cache_folder, write_text_atomically

TREE, GAME, SHARED, PACKED = "json_2.1.1", "game.tw-pddl", "shared.json", ".jsonl.xz"
CACHE = "alfworld"  # the kind of cache folder


@dataclass(frozen=True, slots=True)
class Entry:
    """One game of a split: enough to list it and to find it again. `digest` is 32 hex digits of the game's whole content."""

    id: str
    task_type: str
    digest: str
    place: str  # its location as text, for errors
    position: tuple[int, int] = (0, 0)  # packed: first byte and length in the unpacked lines


@dataclass(frozen=True, slots=True)
class Game:
    """The text of one game."""

    problem: str
    domain: str
    grammar: str
    walkthrough: tuple[str, ...]


class Library(ABC):
    """The games of one folder. Splits are listed on first use."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.damaged: list[str] = []
        self._splits: dict[str, dict[str, Entry]] = {}

    @abstractmethod
    def splits(self) -> list[str]:
        """The names of the existing splits."""

    @abstractmethod
    def _list(self, split: str) -> Iterator[Entry | str]:
        """The split's games, and for each damaged one a text with its location and the problem."""

    @abstractmethod
    def read(self, entry: Entry) -> Game:
        """The game's text."""

    def entries(self, split: str) -> dict[str, Entry]:
        """The split's playable games by id, in the order of the ids."""
        if split not in self._splits:
            if split not in self.splits():
                raise unknown_name(f"split of {self.folder}: split", split, self.splits())
            games: dict[str, Entry] = {}
            damage: list[str] = []
            for found in self._list(split):
                if isinstance(found, str):
                    damage.append(found)
                elif found.id in games:
                    damage.append(f"{found.place}: the same game as {games[found.id].place} ({found.id})")
                else:
                    games[found.id] = found
            self._splits[split] = dict(sorted(games.items()))
            self._report(split, damage)
        return self._splits[split]

    def _report(self, split: str, damage: list[str]) -> None:
        self.damaged += damage
        if damage:
            more = f" (and {len(damage) - 3} more)" if len(damage) > 3 else ""
            warnings.warn(f"alfworld, {split}: {len(damage)} games left out: {'; '.join(damage[:3])}{more}", UserWarning, stacklevel=4)

    def entry(self, game: str) -> Entry:
        """The game with this id."""
        split = game.partition("/")[0]
        entries = self.entries(split)
        if game not in entries:
            lost = [text for text in self.damaged if game in text.replace(os.sep, "/")]
            if lost:
                raise TurnwiseError(f"this game's file is damaged: {lost[0]}")
            error = unknown_name(f"task of {self.folder}", game, entries)
            if len(known := list(entries)) < 20:
                raise error
            nearest = str(error).partition(" Known:")[0]
            raise TurnwiseError(f"{nearest} The split has {len(known)} games, from {known[0]} to {known[-1]}")
        return entries[game]


def digest_of(problem: str, domain: str, grammar: str, sentence: str | None = None) -> str:
    """32 hex digits of a game; the same for both forms. If `sentence` is given, `grammar` is the template that `split_task` left."""
    if sentence is None:
        grammar, sentence = split_task(grammar)
    rest = "\0".join(("", _text_digest(domain), _text_digest(grammar), sentence))
    written = json.dumps(problem)[1:-1]  # as a game's file has it
    return sha256(written.encode() + rest.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@lru_cache(maxsize=64)
def _text_digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def game_from(data: Any) -> Game:
    """The game in the JSON object of an official file."""
    if not isinstance(data, dict):
        raise TurnwiseError("expected a JSON object")
    for field in ("pddl_problem", "pddl_domain", "grammar"):
        if not isinstance(data.get(field), str):
            raise TurnwiseError(f"{field!r} is missing or not a text")
    walkthrough = data.get("walkthrough")
    commands = tuple(map(str, walkthrough)) if isinstance(walkthrough, list) else ()
    return Game(data["pddl_problem"], data["pddl_domain"], data["grammar"], commands)


class TreeLibrary(Library):
    """The official tree. What was read from a file is kept in the cache folder under its size and time, so that it is read once."""

    def splits(self) -> list[str]:
        return sorted(part.name for part in self.folder.iterdir() if part.is_dir() and next(part.glob(f"*/*/{GAME}"), None))

    def _list(self, split: str) -> Iterator[Entry | str]:
        name = sha256(f"tree {self.folder / split}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
        path_of_notes = cache_folder(CACHE) / f"{name}.json"
        before, notes = _read_notes(path_of_notes), dict[str, Any]()
        for path in sorted((self.folder / split).glob(f"*/*/{GAME}")):
            task, trial = path.parent.parent.name, path.parent.name
            if "movable" in task or "Sliced" in task:
                continue  # the reference also leaves these out
            stamp = [path.stat().st_size, path.stat().st_mtime_ns]
            note = before.get(f"{task}/{trial}")
            if not isinstance(note, list) or len(note) != 2 or note[0] != stamp:
                try:
                    note = [stamp, self._examine(path, task)]
                except (TurnwiseError, ValueError, OSError) as error:
                    yield f"{path}: {reason(error)}"
                    continue
            notes[f"{task}/{trial}"] = note
            task_type, digest = note[1]
            if task_type:
                yield Entry(f"{split}/{task}/{trial}", task_type, digest, str(path))
        if notes != before:
            with suppress(OSError):  # losing the notes only costs time
                write_text_atomically(path_of_notes, json.dumps(notes))

    def _examine(self, path: Path, task: str) -> list[str]:
        """Task type and digest; an empty type for games that the reference does not play."""
        data = json.loads(path.read_bytes())
        game = game_from(data)
        task_type = task.partition("-")[0]
        if task_type not in TASK_TYPES:
            try:
                task_type = str(json.loads(path.with_name("traj_data.json").read_bytes())["task_type"])
            except (OSError, ValueError, KeyError, TypeError):
                task_type = ""
        if task_type not in TASK_TYPES or not data.get("solvable"):
            return ["", ""]
        return [task_type, digest_of(game.problem, game.domain, game.grammar)]

    def read(self, entry: Entry) -> Game:
        path = self.folder.joinpath(*entry.id.split("/"), GAME)
        try:
            return game_from(json.loads(path.read_bytes()))
        except (TurnwiseError, ValueError, OSError) as error:
            raise TurnwiseError(f"{path}: {reason(error)}") from None


def _read_notes(path: Path) -> dict[str, Any]:
    """What was read from the files of a tree before."""
    try:
        notes = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}


def reason(error: Exception, what: str = "file") -> str:
    """Why the content of a game cannot be read."""
    if isinstance(error, json.JSONDecodeError):
        return f"not a whole JSON {what}: {error.msg} at line {error.lineno}, column {error.colno} (character {error.pos})"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text: byte {error.start}"
    if isinstance(error, IndexError):
        return f"it refers to a domain or grammar that {SHARED} does not have"
    return str(error)
