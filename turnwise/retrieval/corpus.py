"""A corpus of passages in a file of lines, of any size, read in place, one passage at a time.

Supported formats are JSON lines with `title` and `text`, or with `contents` (the title on the first line), and tab-separated tables with
the columns id, text and title; each also compressed with xz, gzip or bzip2. The first use writes the offset of every line (and the
unpacked lines of a compressed file) into the cache; after that a passage is a slice of a memory-mapped file, which processes share.
"""

from __future__ import annotations

import csv
import json
import mmap
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from turnwise.retrieval.base import Passage, passage_of_contents
from turnwise.retrieval.cache import build_once, cache_folder, file_key
from turnwise.util.errors import TurnwiseError
from turnwise.util.unpack import PACKED, packed_lines

FORMS = (".jsonl", ".tsv")
OFFSETS, LINES = "offsets.npy", "lines"


class Corpus:
    """The passages of a file, by their position."""

    def __init__(self, path: str | Path):
        self.path = Path(path).expanduser()
        if not self.path.is_file():
            raise TurnwiseError(f"{self.path}: no such corpus file. Expected JSON lines with title and text, or contents")
        self.form = form_of(self.path)
        self.key = file_key(self.path)
        folder = build_once(cache_folder() / "corpora" / self.key, self._look)
        self._offsets = np.asarray(np.load(folder / OFFSETS, mmap_mode="r"))
        lines = folder / LINES if (folder / LINES).exists() else self.path
        with lines.open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _look(self, folder: Path) -> None:
        """Write the line offsets and, for a compressed file, the lines too."""
        offsets, place = array("q"), 0
        packed = self.path.suffix in PACKED
        with (folder / LINES if packed else Path(os.devnull)).open("wb") as copy:
            for number, line in enumerate(packed_lines(self.path)):
                if line.strip() and not (number == 0 and self.form == ".tsv" and line.startswith(b"id\t")):
                    offsets.extend((place, place + len(line)))
                place += len(line)
                if packed:
                    copy.write(line)
        if not offsets:
            raise TurnwiseError(f"{self.path}: no passages in this file")
        np.save(folder / OFFSETS, np.frombuffer(offsets, np.int64).reshape(-1, 2))

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, place: int) -> Passage:
        start, end = self._offsets[place]
        return self._read(place, self._lines[start:end])

    def __iter__(self) -> Iterator[Passage]:
        return (self[place] for place in range(len(self)))

    def _read(self, place: int, line: bytes) -> Passage:
        try:
            if self.form == ".tsv":
                name, text, title = next(csv.reader([line.decode().rstrip("\r\n")], delimiter="\t"))
                return Passage(name, " ".join(title.split()), text)
            record = json.loads(line)
            name = str(record.get("id", place))
            if "text" not in record:
                return passage_of_contents(name, record["contents"])
            return Passage(name, " ".join(str(record.get("title", "")).split()), str(record["text"]))
        except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
            wanted = "id, text and title separated by tabs" if self.form == ".tsv" else 'a JSON object with "text" or "contents"'
            raise TurnwiseError(f"{self.path}, passage {place}: expected {wanted} ({type(error).__name__}: {error})") from None


def form_of(path: Path) -> str:
    """`.jsonl` or `.tsv`, whatever the compression."""
    plain = path.with_suffix("") if path.suffix in PACKED else path
    if plain.suffix not in FORMS:
        raise TurnwiseError(f"{path}: a corpus is a .jsonl or .tsv file, optionally compressed ({', '.join(PACKED)})")
    return plain.suffix
