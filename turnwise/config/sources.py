"""The code files that a run has used. `objects/files.json` in its folder has, for every reference of the recipe to a file, the full path
and the hash of its content. A run that continues with another version of a file prints a warning."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from turnwise.config.objects import FOLDER
from turnwise.config.references import code_in, located
from turnwise.util.files import inside, write_text_atomically

FILES = "files.json"


def keep_files(folder: Path, values: Any, say: Callable[[str], None] = lambda text: None, write: bool = True) -> None:
    """Record the files that a recipe's values name, and warn about those that have changed since they were recorded."""
    now = {text: found for text in code_in(values) if (found := _found(text)) is not None}
    path = inside(folder, folder / FOLDER / FILES)
    before = _recorded(path)
    for text, found in now.items():
        known = before.get(text)
        if isinstance(known, dict) and known.get("sha256") != found["sha256"]:
            say(f"warning: {found['path']} has changed since the run began; the new version is used")
    if write and any(text not in before for text in now):
        path.parent.mkdir(exist_ok=True)
        write_text_atomically(path, json.dumps(now | before, indent=1, sort_keys=True) + "\n")


def _found(text: str) -> dict[str, str] | None:
    place = located(text) if text.endswith(".py") else located(text).rpartition(":")[0]
    try:
        return {"path": place, "sha256": sha256(Path(place).read_bytes()).hexdigest()} if place.endswith(".py") else None
    except OSError:  # reported where it is needed
        return None


def _recorded(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
