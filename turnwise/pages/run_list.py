"""The list of runs, one line each: settings, progress and success.

A run is identified by its path under the folder that is shown, as a text that a browser can show and send back. A requested name is only
looked up among those found, so no name leads out of that folder.
"""

from __future__ import annotations

import math
import os
import threading
import time
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnwise.credit import parts
from turnwise.methods.settings import CREDIT
from turnwise.runs.folder import ARENA, CONFIG, SUMMARY, Run, read_facts
from turnwise.runs.metrics import METRICS
from turnwise.runs.tail import news
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside

DIAGNOSIS = "diagnosis.json"  # in the folder of logs that were diagnosed (turnwise/pages/diagnosis.py)
DEEPEST = 4  # folders below the one that is shown in which runs are looked for
QUIET = 300.0  # seconds without activity after which a run counts as stopped; longer if its iterations are long


def readable(name: Any) -> str:
    """A name as valid Unicode: bytes that are not UTF-8, which file systems allow, and halves of surrogate pairs are escaped."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def distinct(name: str, taken: Any) -> str:
    """The name or, if it is taken, the name with the first number that makes it unique."""
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name} ({number})"
    return unique


@dataclass
class Progress:
    """A summary of a run's metrics so far; reads only what is new."""

    after: int = 0
    mark: int = 0
    iterations: int = 0
    seconds: float = 0.0
    first: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)

    def look(self, path: Path) -> None:
        new = news(path, self.after, self.mark)
        if new.anew:
            self.iterations, self.seconds, self.first, self.last = 0, 0.0, {}, {}
        self.after, self.mark = new.after, new.mark
        for line in new.lines:
            self.iterations = max(self.iterations, int(_number(line.get("iteration")) or 0))
            self.seconds = _number(line.get("time/iteration")) or 0.0
            if "eval/success" in line:
                self.first = self.first or line
                self.last = line


class RunList:
    """The runs below a folder, or the one run that a folder is (under another name, if one is given)."""

    def __init__(self, root: str | Path, name: str | None = None):
        self.root, self._name = Path(root), name
        if not self.root.is_dir():
            raise TurnwiseError(f"{self.root} is not a folder: give a run, or a folder that holds runs")
        self.single = (self.root / CONFIG).is_file()
        self.arena = (self.root / ARENA).is_file()
        self._progress: dict[str, Progress] = {}
        self._lock = threading.Lock()
        if not self.folders() and not self.arena:
            raise TurnwiseError(f"{self.root} holds no run: a run is a folder that `turnwise train` made, with a {CONFIG}")

    def folders(self) -> dict[str, Path]:
        """Every run's folder by its path under the root."""
        if self.single:
            return {self._name or readable(self.root.resolve().name) or "run": self.root}
        folders: dict[str, Path] = {}
        for folder, below, files in os.walk(self.root):
            path = Path(folder)
            relative = path.relative_to(self.root)
            if CONFIG in files and path != self.root:
                folders[distinct(readable(relative.as_posix()), folders)] = path
                below.clear()
            elif len(relative.parts) >= DEEPEST:
                below.clear()
            else:
                below[:] = sorted(name for name in below if not name.startswith("."))
        return folders

    def run(self, name: str) -> Run:
        """The run of that name."""
        folder = self.folders().get(name)
        if folder is None:
            raise TurnwiseError(f"there is no run {name!r} in {self.root}")
        return Run.open(folder)

    def cards(self) -> list[dict[str, Any]]:
        """One card per run. A run that cannot be read, or is deleted in the meantime, is named and does not affect the others."""
        cards = []
        for name, folder in self.folders().items():
            try:
                cards.append(self.card(name, folder))
            except (OSError, ValueError, TypeError) as error:
                cards.append({"run": name, "name": name, "state": "unreadable", "problem": f"{type(error).__name__}: {error}"[:300]})
        return cards

    def card(self, name: str, folder: Path) -> dict[str, Any]:
        """What a list of runs shows of one: only texts and numbers, whatever the files contain."""
        summary, recipe = read_facts(folder, SUMMARY), read_recipe(folder)
        with self._lock:
            progress = self._progress.setdefault(name, Progress())
            progress.look(inside(folder, folder / METRICS))
            first, last, iterations, seconds = progress.first, progress.last, progress.iterations, progress.seconds
        newer = last if _number(last.get("iteration")) else {}  # what was measured before the first update is not a result of training
        touched = max((path.stat().st_mtime for path in (folder / METRICS, folder / CONFIG) if path.exists()), default=0.0)
        algorithm = _name(recipe, "credit", CREDIT)
        numbers = {
            "seed": recipe.get("seed", 0),
            "iterations": iterations,
            "planned": recipe.get("iterations"),
            "before": first.get("eval/success"),
            "after": newer.get("eval/success"),
            "measured": newer.get("iteration"),  # the iteration of that evaluation: a running run is further by now
            "tasks": summary.get("panel_size", _section(recipe, "eval").get("n")),
            "seconds": summary.get("train_seconds"),
            "turns": summary.get("turns"),
            "touched": touched,
        }
        intervals = {
            f"{when}_interval": [_number(line.get(f"eval/{end}")) for end in ("low", "high")]
            for when, line in (("before", first), ("after", newer))
        }
        words: dict[str, Any] = {
            "run": name,
            "name": str(recipe.get("name", name)),
            "algorithm": algorithm,
            "environment": _name(recipe, "env", "household"),
            "diagnosed": (folder / DIAGNOSIS).is_file(),
        }
        words["state"] = state(folder, summary, touched, seconds)
        return words | {key: _number(value) for key, value in numbers.items()} | intervals | {"steps": "step" in parts(algorithm)}


def state(folder: Path, summary: dict[str, Any], touched: float, seconds: float) -> str:
    """`finished`, `running` or `stopped`. A killed run leaves no message, so one that has been quiet for long counts as stopped."""
    path = folder / SUMMARY
    summarised = path.stat().st_mtime if path.exists() else 0.0
    if summary.get("finished"):
        return "finished"
    if summary and summarised >= touched:
        return "stopped"
    return "running" if time.time() - touched < max(QUIET, 5 * seconds) else "stopped"


def read_recipe(folder: Path) -> dict[str, Any]:
    """The run's recipe as plain values, unchecked: what cannot be read is shown as text elsewhere."""
    try:
        stamp = inside(folder, folder / CONFIG).stat()
        return _parsed(folder / CONFIG, stamp.st_mtime_ns, stamp.st_size)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TurnwiseError):
        return {}


@lru_cache(maxsize=4096)
def _parsed(path: Path, changed: int, size: int) -> dict[str, Any]:
    """Reading TOML takes a while, and a list of many runs is asked for again and again."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _number(value: Any) -> Any:
    """The value if it is a number, otherwise None."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None


def _section(recipe: dict[str, Any], name: str) -> dict[str, Any]:
    section = recipe.get(name, {})
    return section if isinstance(section, dict) else {}


def _name(recipe: dict[str, Any], section: str, default: str) -> str:
    return str(_section(recipe, section).get("name", default))
