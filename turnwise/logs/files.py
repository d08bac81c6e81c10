"""The records in files of logs: JSON lines or whole JSON documents, compressed or not, single files, folders and patterns.

Files are from outside: their size is bounded, a line that is not JSON is counted and left out, and links out of a folder are not followed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from lzma import LZMAError
from pathlib import Path
from typing import Any

from turnwise.util.errors import TurnwiseError
from turnwise.util.printable import counted
from turnwise.util.unpack import PACKED, open_packed, packed_lines

ENDINGS = (".jsonl", ".json", ".ndjson")
MOST_FILES = 100_000
LARGEST_JSON = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON value, and where it is: the file, and the line."""

    path: Path
    number: int
    value: Any

    @property
    def where(self) -> str:
        return f"{self.path.name}:{self.number}"


def find_files(names: Sequence[str]) -> list[Path]:
    """The files behind names of files, folders (with all logs in them) and patterns, in a fixed order."""
    files: dict[Path, None] = {}
    for name in names:
        path = Path(name).expanduser()
        matches = [path] if path.exists() else sorted(map(Path, glob(str(path), recursive=True)))  # noqa: PTH207 (Path.glob refuses ** inside a word)
        if not matches:
            raise TurnwiseError(f"{name}: no such file or folder, and no file matches it")
        for match in matches:
            files |= dict.fromkeys([match] if match.is_file() else _inside(match))
            if len(files) > MOST_FILES:
                raise TurnwiseError(f"{name}: more than {MOST_FILES:,} files; read them in parts")
    if not files:
        raise TurnwiseError(f"{', '.join(names)}: no logs in there; they end in {', '.join(ENDINGS)}, also with .gz, .xz or .bz2")
    return list(files)


def _inside(folder: Path) -> list[Path]:
    logs = (path for path in folder.rglob("*") if _ending(path) in ENDINGS and not path.name.startswith("."))
    return sorted(path for path in logs if path.is_file() and path.resolve().is_relative_to(folder.resolve()))


def _ending(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


class Reader:
    """Gives the records of files, and notes what it left out."""

    def __init__(self) -> None:
        self.broken = 0  # lines that are not JSON
        self.notes: list[str] = []

    def records(self, path: Path) -> Iterator[Record]:
        """The values of a file. A file whose first line is not a JSON value is read as one document; the items of an array are records."""
        number = 0
        try:
            for number, line in enumerate(filter(bytes.strip, packed_lines(path)), start=1):
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    if number == 1 and (document := _document(path)) is not None:
                        yield from _items(path, 1, document)
                        return
                    self.broken += 1
                else:
                    yield from _items(path, number, value) if number == 1 else [Record(path, number, value)]
        except (OSError, EOFError, LZMAError, zlib.error) as error:
            if not number:
                raise TurnwiseError(f"{path}: cannot be read ({error})") from None
            self.notes.append(f"{path.name}: damaged after {counted(number, 'line')}; what follows was not read ({error})")


def _document(path: Path) -> Any:
    """The value of a file that is one JSON document; None if it is not."""
    with open_packed(path) as file:
        text = file.read(LARGEST_JSON + 1)
    try:
        return json.loads(text) if len(text) <= LARGEST_JSON else None
    except (ValueError, RecursionError):
        return None


def _items(path: Path, number: int, value: Any) -> Iterator[Record]:
    """An array of records, unless it is one conversation: an array of messages."""
    if isinstance(value, list) and not (value and isinstance(value[0], dict) and ("role" in value[0] or "from" in value[0])):
        yield from (Record(path, place, item) for place, item in enumerate(value, start=1))
    else:
        yield Record(path, number, value)
