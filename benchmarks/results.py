"""The end of every benchmark: its result is printed as JSON and, if a path is given, written there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from turnwise.util.files import write_text_atomically


def publish(result: Any, path: Path | None, indent: int = 1) -> None:
    """Print the result as JSON, and write the same text to `path` unless it is None."""
    text = json.dumps(result, indent=indent, ensure_ascii=False) + "\n"
    print(text, end="")
    if path is not None:
        write_text_atomically(path, text)
