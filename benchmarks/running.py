"""Processes that a benchmark starts: how long they run, and what is written meanwhile."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.util.files import write_text_atomically


@dataclass
class Running:
    """A process, since when it has run, and how many seconds it may."""

    process: subprocess.Popen[bytes]
    since: float
    most: float

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.since, 1)

    def stopped(self) -> bool:
        """Whether it has ended; one that takes too long is ended."""
        if self.process.poll() is None and self.seconds > self.most:
            self.process.kill()
            self.process.wait()
        return self.process.poll() is not None


def keep(path: Path, found: list[dict[str, Any]]) -> None:
    """Write a result, if it is another one than before."""
    text = json.dumps(found, indent=1) + "\n"
    if not path.exists() or path.read_text() != text:
        write_text_atomically(path, text)
