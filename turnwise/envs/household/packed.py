"""The packed form of ALFWorld's games: `<split>.jsonl.xz` with one game per line, and `shared.json` with the domains and grammars.

A stream cannot be read from the middle, so a split is unpacked once into the cache folder (192 MB for the 3,553 games of `train`), with an
index next to it.
"""

from __future__ import annotations

import json
import lzma
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from turnwise.envs.household.games import CACHE, PACKED, SHARED, Entry, Game, Library, digest_of, reason
from turnwise.envs.household.grammar import split_task
from turnwise.envs.household.house import TASK_TYPES
from turnwise.retrieval.cache import build_once
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import cache_folder
from turnwise.util.unpack import packed_lines

FORMAT = 2  # raise it when the format of the index changes
LINES, INDEX = "games.jsonl", "index.json"
TASK_SLOT = "{TASK}"


@dataclass(frozen=True)
class Shared:
    """The domains and grammars that games refer to by number. `templates`: each grammar without its task's sentence, and that sentence."""

    domains: list[str]
    grammars: list[str]
    templates: list[tuple[str, str]]
    digest: str


class PackedLibrary(Library):
    def __init__(self, folder: Path):
        super().__init__(folder)
        self.shared = _read_shared(folder / SHARED)
        self._files: dict[str, IO[bytes]] = {}
        weakref.finalize(self, _close_all, self._files)

    def splits(self) -> list[str]:
        return sorted(path.name.removesuffix(PACKED) for path in self.folder.glob(f"*{PACKED}"))

    def _list(self, split: str) -> Iterator[Entry | str]:
        source = self.folder / f"{split}{PACKED}"
        stamp = sha256(f"{FORMAT} {split} {self.shared.digest}".encode() + source.read_bytes()).hexdigest()[:32]
        folder = build_once(cache_folder(CACHE) / stamp, lambda new: self._unpack(split, source, new))
        self._files[split] = (folder / LINES).open("rb")
        found = json.loads((folder / INDEX).read_bytes())
        yield from (f"{source}, {damage}" for damage in found["damaged"])
        yield from (Entry(row[0], row[1], row[2], f"{source}, line {row[3]}", (row[4], row[5])) for row in found["games"])

    def _unpack(self, split: str, source: Path, folder: Path) -> None:
        games: list[tuple[str, str, str, int, int, int]] = []
        damaged: list[str] = []
        start = 0
        with (folder / LINES).open("wb") as output:
            for number, line in enumerate(_lines(source), 1):
                try:
                    if isinstance(line, str):
                        raise TurnwiseError(line)
                    if found := self._recognise(line, split):
                        output.write(line)
                        games.append((*found, number, start, len(line)))
                        start += len(line)
                except (TurnwiseError, ValueError, LookupError, TypeError) as error:
                    damaged.append(f"line {number}: {reason(error, 'line')}")
        (folder / INDEX).write_text(json.dumps({"games": games, "damaged": damaged}), encoding="utf-8")

    def _recognise(self, line: bytes, split: str) -> tuple[str, str, str] | None:
        """Id, task type and digest of a line's game; None if the game cannot be solved or the line is empty."""
        if not line.strip():
            return None
        record = json.loads(line)
        task_type = _text(record, "task_type")
        if task_type not in TASK_TYPES or not record.get("solvable"):
            return None
        domain, (template, sentence) = self._domain(record), self.shared.templates[_number(record, "grammar")]
        digest = digest_of(_text(record, "problem"), domain, template, sentence.replace(TASK_SLOT, _text(record, "goal")))
        return f"{split}/{_text(record, 'task')}/{_text(record, 'trial')}", task_type, digest

    def _domain(self, record: Any) -> str:
        return self.shared.domains[_number(record, "domain")]

    def read(self, entry: Entry) -> Game:
        # os.pread does not move the file position: environments in several threads may read at once.
        line = os.pread(self._files[entry.id.partition("/")[0]].fileno(), entry.position[1], entry.position[0])
        try:
            record = json.loads(line)
            grammar = self.shared.grammars[_number(record, "grammar")].replace(TASK_SLOT, _text(record, "goal"))
            return Game(_text(record, "problem"), self._domain(record), grammar, tuple(map(str, record.get("walkthrough") or ())))
        except (TurnwiseError, ValueError, LookupError, TypeError) as error:
            raise TurnwiseError(f"{entry.place}: {reason(error, 'line')}") from None


def _close_all(files: dict[str, IO[bytes]]) -> None:
    for file in files.values():
        file.close()


def _read_shared(path: Path) -> Shared:
    try:
        content = path.read_bytes()
        data = json.loads(content)
        domains, grammars = [str(text) for text in data["domains"]], [str(text) for text in data["grammars"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise TurnwiseError(f"{path}: the domains and grammars of the packed games cannot be read: {reason(error, 'line')}") from None
    return Shared(domains, grammars, [_template(text) for text in grammars], sha256(content).hexdigest())


def _template(grammar: str) -> tuple[str, str]:
    """The grammar without its task's sentence, and that sentence with the placeholder for the goal still in it."""
    stand_in = "goal"  # any harmless word: the placeholder's braces would prevent taking out the sentence
    template, sentence = split_task(grammar.replace(TASK_SLOT, stand_in))
    after = grammar.partition(TASK_SLOT)[2]
    if sentence.count(stand_in) != 1 or TASK_SLOT not in grammar or TASK_SLOT in after:
        raise TurnwiseError(f"{SHARED}: a grammar must have {TASK_SLOT} once, in the production of its task")
    return template, sentence.replace(stand_in, TASK_SLOT)


def _lines(source: Path) -> Iterator[bytes | str]:
    """The stream's lines; a text instead of the line at which the stream breaks off."""
    try:
        for line in packed_lines(source):
            yield line.removesuffix(b"\n")
    except EOFError:
        yield "the xz stream ends here before its end (a truncated file?); the lines after it are lost"
    except (lzma.LZMAError, TurnwiseError) as error:
        yield f"the xz stream is damaged here ({error}); the lines after it are lost"


def _text(record: Any, field: str) -> str:
    value = record.get(field) if isinstance(record, dict) else None
    if not isinstance(value, str):
        raise TurnwiseError(f"the field {field!r} is missing or not a text")
    return value


def _number(record: dict[str, Any], field: str) -> int:
    value = record.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TurnwiseError(f"the field {field!r} must be a number from 0")
    return value
