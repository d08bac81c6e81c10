"""Which runs there are, and each in one line: what it is, how far it is, how good it became.

A run is known by its place under the folder that is shown; a name that was asked for is only ever looked up among those found, so no
name leads out of that folder.
"""

from __future__ import annotations

import json
import os
import threading
import time
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnwise.errors import TurnwiseError
from turnwise.files import inside
from turnwise.pages.tail import news
from turnwise.runs import CONFIG, METRICS, SUMMARY, Run

DEEPEST = 4  # folders below the one that is shown in which runs are looked for
QUIET = 300.0  # seconds without a sign of life after which a run counts as stopped; longer where its iterations are long


@dataclass
class Progress:
    """What the metrics of a run say so far; reads only what is new."""

    after: int = 0
    mark: int = 0
    iterations: int = 0
    seconds: float = 0.0
    first: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)

    def look(self, path: Path) -> None:
        found = news(path, self.after, self.mark)
        if found.anew:
            self.iterations, self.seconds, self.first, self.last = 0, 0.0, {}, {}
        self.after, self.mark = found.after, found.mark
        for line in found.lines:
            self.iterations = max(self.iterations, int(line.get("iteration", 0)))
            self.seconds = float(line.get("time/iteration", 0.0))
            if "eval/success" in line:
                self.first = self.first or line
                self.last = line


class Shelf:
    """The runs below a folder, or the one run that a folder is (under another name, where one is given)."""

    def __init__(self, root: str | Path, name: str | None = None):
        self.root, self._name = Path(root), name
        if not self.root.is_dir():
            raise TurnwiseError(f"{self.root} is not a folder: give a run, or a folder that holds runs")
        self.single = (self.root / CONFIG).is_file()
        self._progress: dict[str, Progress] = {}
        self._lock = threading.Lock()
        if not self.folders():
            raise TurnwiseError(f"{self.root} holds no run: a run is a folder that `turnwise train` made, with a {CONFIG}")

    def folders(self) -> dict[str, Path]:
        """Every run's folder by its place under the root."""
        if self.single:
            return {self._name or self.root.resolve().name: self.root}
        found: dict[str, Path] = {}
        for folder, below, files in os.walk(self.root):
            path = Path(folder)
            place = path.relative_to(self.root)
            if CONFIG in files and path != self.root:
                found[place.as_posix()] = path
                below.clear()
            elif len(place.parts) >= DEEPEST:
                below.clear()
            else:
                below[:] = sorted(name for name in below if not name.startswith("."))
        return found

    def run(self, name: str) -> Run:
        """The run of that name."""
        folder = self.folders().get(name)
        if folder is None:
            raise TurnwiseError(f"there is no run {name!r} in {self.root}")
        return Run.open(folder)

    def cards(self) -> list[dict[str, Any]]:
        """One card a run."""
        return [self.card(name, folder) for name, folder in self.folders().items()]

    def card(self, name: str, folder: Path) -> dict[str, Any]:
        """What a list of runs shows of one."""
        summary = read_summary(folder)
        if summary.get("finished") and {"algorithm", "success_after", "interval_before"} <= set(summary):
            return _finished(name, folder, summary)
        recipe = read_recipe(folder)
        with self._lock:
            progress = self._progress.setdefault(name, Progress())
            progress.look(inside(folder, folder / METRICS))
            first, last, iterations, seconds = progress.first, progress.last, progress.iterations, progress.seconds
        newer = last if last.get("iteration", 0) else {}  # what was measured before the first update is not what came of it
        touched = max((path.stat().st_mtime for path in (folder / METRICS, folder / CONFIG) if path.exists()), default=0.0)
        return {
            "run": name,
            "name": recipe.get("name", name),
            "algorithm": _name(recipe, "credit", "gigpo"),
            "environment": _name(recipe, "env", "household"),
            "seed": recipe.get("seed", 0),
            "iterations": iterations,
            "planned": recipe.get("iterations"),
            "before": first.get("eval/success"),
            "after": newer.get("eval/success"),
            "measured": newer.get("iteration"),  # after which iteration that was: a run that goes on is further by now
            "before_interval": [first.get("eval/low"), first.get("eval/high")],
            "after_interval": [newer.get("eval/low"), newer.get("eval/high")],
            "tasks": _section(recipe, "eval").get("n"),
            "state": state(folder, summary, touched, seconds),
            "seconds": summary.get("train_seconds"),
            "turns": summary.get("turns"),
            "touched": touched,
        }


def _finished(name: str, folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """The card of a finished run: its summary says it all, and a list of hundreds of runs reads nothing else."""
    same = ("name", "algorithm", "environment", "seed", "iterations", "turns")
    return {
        "run": name,
        **{key: summary.get(key) for key in same},
        "planned": summary.get("iterations"),
        "before": summary.get("success_before"),
        "after": summary.get("success_after"),
        "measured": summary.get("iterations"),
        "before_interval": summary.get("interval_before"),
        "after_interval": summary.get("interval_after"),
        "tasks": summary.get("panel_size"),
        "state": "finished",
        "seconds": summary.get("train_seconds"),
        "touched": (folder / SUMMARY).stat().st_mtime,
    }


def state(folder: Path, summary: dict[str, Any], touched: float, seconds: float) -> str:
    """`finished`, `running` or `stopped`. A run that was killed leaves no word, so one that has been quiet for long counts as stopped."""
    path = folder / SUMMARY
    said = path.stat().st_mtime if path.exists() else 0.0
    if summary.get("finished"):
        return "finished"
    if summary and said >= touched:
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


def read_summary(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(inside(folder, folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, TurnwiseError):
        return {}
    return found if isinstance(found, dict) else {}


def _section(recipe: dict[str, Any], name: str) -> dict[str, Any]:
    found = recipe.get(name, {})
    return found if isinstance(found, dict) else {}


def _name(recipe: dict[str, Any], section: str, default: str) -> str:
    return str(_section(recipe, section).get("name", default))
