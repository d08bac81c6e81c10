"""The metrics of a run: who writes them, and who reads them.

    written   the loop (turnwise/train.py) calls `Run.log` once per iteration, which appends a line to metrics.jsonl and passes it on to
              the trackers (turnwise/runs/trackers/)
    read      `Run.metrics()`, for comparisons (turnwise/runs/records.py), reports, replay and a resumed run; new lines of a
              run that is still going by `news` (turnwise/runs/tail.py), for pages and sweeps

What each metric means is in docs/reference/metrics.md. Warnings are kept in the same way, in warnings.jsonl.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically
from turnwise.util.terminal import command

METRICS, WARNINGS = "metrics.jsonl", "warnings.jsonl"


class Log:
    """A file of JSON lines, each of an iteration, that only grows. After a crash the last line may be incomplete."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self._lines: list[str] = []  # what this run has written, regardless of later changes to the file

    @property
    def text(self) -> str:
        """All lines as this run has written them: what a checkpoint keeps."""
        return "".join(self._lines)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line, and flush it to the disk."""
        line = json.dumps(record, allow_nan=False, default=float) + "\n"
        self._lines.append(line)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[dict[str, Any]]:
        """All complete lines; a last line that was cut off by a crash is skipped."""
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""  # damage is found line by line
        records: list[dict[str, Any]] = []
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                if number == len(lines) and line.startswith("{"):
                    break  # a crash has cut it off
                record = None
            if not isinstance(record, dict) or type(record.get("iteration")) not in (int, float):
                raise TurnwiseError(
                    f"{self.path}, line {number}: not a line that a run writes; the file was damaged after it was written. "
                    f"{command('train', '--resume', str(self.path.parent))} puts it back from the last checkpoint"
                )
            records.append(record)
        return records

    def rewind(self, iteration: int, text: str | None, say: Callable[[str], None]) -> None:
        """Drop all lines after an iteration. `text` is the checkpoint's copy: it is restored if the file differs, which is then renamed
        and kept."""
        if text is None:
            records = [record for record in self.read() if record["iteration"] <= iteration]
            text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        there = self.path.read_bytes() if self.path.exists() else b""
        if not there.startswith(text.encode()):
            if there:
                say(
                    f"warning: {self.path} was damaged or edited: the checkpoint's lines are put back; "
                    f"what stood there is now {self.set_aside().name}"
                )
            else:
                say(f"warning: {self.path} was missing or empty: the checkpoint's lines are put back")
        if there != text.encode() and (text or self.path.exists() or self.path.name == METRICS):
            write_text_atomically(self.path, text)
        self._lines = text.splitlines(keepends=True)

    def set_aside(self) -> Path:
        """Rename the file, so that nothing is lost when it is replaced."""
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        return self.path.replace(aside)
