"""Reading a file of JSON lines while another process appends to it: each read gives only what is new.

A reader remembers its offset (`after`) and a checksum of the bytes before it (`mark`). A resumed run rewrites its file; the checksum then
differs, and the reader starts again instead of mixing two histories.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOK_BACK = 512  # bytes before the offset that the checksum covers


@dataclass(frozen=True)
class News:
    """The result of a read: the new complete lines, the next offset, whether everything known before is void, and lines that were not
    JSON."""

    lines: list[dict[str, Any]]
    after: int
    mark: int
    anew: bool
    damaged: int


def news(path: Path, after: int = 0, mark: int = 0) -> News:
    """The complete lines after an offset. A partial last line waits for the next read."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return News([], 0, 0, after > 0, 0)
    with file:
        anew = not 0 <= after <= path.stat().st_size or (after > 0 and _mark(file, after) != mark)
        start = 0 if anew else after
        file.seek(start)
        data = file.read()
        end = data.rfind(b"\n") + 1
        records, damaged = [], 0
        for line in data[:end].splitlines():
            try:
                record = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError):
                record = None
            if isinstance(record, dict):
                records.append(record)
            else:
                damaged += 1
        return News(records, start + end, _mark(file, start + end), anew, damaged)


def _mark(file: Any, place: int) -> int:
    start = max(0, place - LOOK_BACK)
    file.seek(start)
    return zlib.crc32(file.read(place - start))
