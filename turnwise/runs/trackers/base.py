"""What a tracker is, and how a run keeps several of them fed.

A tracker takes the same numbers under the same names as metrics.jsonl. That file is authoritative: a tracker that fails is disabled with
one warning and training continues. The run's folder remembers the last step of each tracker, so that a killed and resumed run sends every
step once: steps that a tracker has are not sent again, and missing steps are sent from metrics.jsonl when it is opened.

The mark is written before a step is sent: a kill between the two loses that step for the tracker, but never sends it twice.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from turnwise.config.kinds import TRACKER
from turnwise.config.options import Registry
from turnwise.config.plugins import import_folder
from turnwise.config.references import is_reference
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside, write_text_atomically

known: Registry[Callable[..., Any]] = Registry("tracker", lambda: import_folder(str(__package__)), TRACKER, first=0)
register = known.register


class Tracker(Protocol):
    """Made with its options from the recipe; a package that it needs and that is missing is an error there. `open` is called once per
    process, also when a run is resumed: it continues what this run's folder has begun."""

    def open(self, folder: Path, config: Mapping[str, Any]) -> None: ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def check_names(names: Iterable[str]) -> None:
    """An error for a name that is neither a registered tracker nor `path/to/file.py:Class`. Nothing of the latter is imported."""
    for name in names:
        if not is_reference(name):
            known[name]


def make_trackers(names: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Tracker]:
    """The trackers of a recipe, not opened yet. A missing package or a wrong option shows here, before anything is trained."""
    trackers: dict[str, Tracker] = {}
    for name in names:
        entry = known.load(name)
        bound = entry.bind((options or {}).get(name, {}), known.kind)
        try:
            tracker = entry.function(**bound)
        except TypeError as error:
            raise TurnwiseError(f"tracker {name!r} cannot be made: {error}") from None
        for method in ("open", "log", "close"):
            if not callable(getattr(tracker, method, None)):
                raise TurnwiseError(f"tracker {name!r}: {type(tracker).__name__} has no method {method}(). See docs/guides/recipes.md")
        trackers[name] = tracker
    return trackers


@dataclass
class Trackers:
    """The trackers of one run. `say` takes one-line notices."""

    folder: Path
    trackers: dict[str, Tracker]
    say: Callable[[str], None] = lambda text: None
    _steps: dict[str, int] = field(default_factory=dict)

    def open(self, config: Mapping[str, Any], logged: Iterable[Mapping[str, Any]] = ()) -> None:
        """Start every tracker, and send it those lines of `logged` (metrics.jsonl) that it does not have yet."""
        lines = list(logged)
        for name, tracker in list(self.trackers.items()):
            try:
                tracker.open(self.folder, config)
            except TurnwiseError:
                raise
            except Exception as error:
                raise TurnwiseError(
                    f"tracker {name!r} cannot start: {_line(error)}. Leave it out with run.trackers=[], or put right what it says"
                ) from error
            self._steps[name] = self._last_step(name)
            for line in lines:
                self._send(name, line)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Send one line of metrics.jsonl to every tracker that does not have it yet."""
        for name in list(self.trackers):
            self._send(name, metrics)

    def close(self) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                tracker.close()
            except Exception as error:
                self.say(f"warning: tracker {name} failed while it was closed: {_line(error)}")
        self.trackers.clear()

    def _send(self, name: str, line: Mapping[str, Any]) -> None:
        step = int(line["iteration"])
        if name not in self.trackers or step <= self._steps[name]:
            return
        numbers = {key: float(value) for key, value in line.items() if isinstance(value, (int, float))}
        try:
            write_text_atomically(self._mark(name), json.dumps({"step": step}) + "\n")
            self._steps[name] = step
            self.trackers[name].log(step, numbers)
        except Exception as error:
            tracker = self.trackers.pop(name)
            self.say(f"warning: tracker {name} failed and is left out from here on ({_line(error)}); metrics.jsonl has everything")
            with contextlib.suppress(Exception):
                tracker.close()

    def _mark(self, name: str) -> Path:
        return self.folder / "trackers" / f"{re.sub(r'[^A-Za-z0-9_-]+', '-', name).strip('-')}.json"

    def _last_step(self, name: str) -> int:
        try:
            return int(json.loads(inside(self.folder, self._mark(name)).read_text(encoding="utf-8"))["step"])
        except FileNotFoundError:
            return -1
        except (ValueError, KeyError, TypeError, OSError):
            raise TurnwiseError(
                f"{self._mark(name)} is damaged: it should hold the last step that the tracker got. Delete it to send all again"
            ) from None


def identity(folder: Path, name: str) -> str:
    """A name for this run in a service: the same whenever the run's folder is opened again."""
    path = inside(folder, folder / "trackers" / f"{name}.id")
    if path.is_file():
        return path.read_text(encoding="utf-8").strip()
    name_in_service = uuid.uuid4().hex[:12]
    write_text_atomically(path, name_in_service + "\n")
    return name_in_service


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
