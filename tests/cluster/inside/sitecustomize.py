"""Loaded by every Python process of a run that is to be killed, because its folder is on PYTHONPATH: reports moments, and strikes at them.

    TURNWISE_KILLS=FOLDER       the processes that belong together; FOLDER/strikes.json lists what dies when

A moment is a call of a function, before or after it: `happens("engine", "turn")`. A strike names a moment, the iteration from which on it
counts, and a victim. The first process that comes by carries it out, once, and writes down what it did. No clock is involved.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

KILLS = os.environ.get("TURNWISE_KILLS", "")
own: dict[str, Any] = {"role": "driver", "rank": None}

# module: (function, the moment before it, the moment after it)
WATCHED: dict[str, list[tuple[str, str, str]]] = {
    "turnwise.setup.cluster": [
        ("join_cluster", "before it joins Ray", "joined Ray"),
        ("WorkerParts.__init__", "before it loads", "loaded"),
        ("WorkerParts.publish", "takes weights", "has weights"),
        ("copy_into", "", "copied weights"),
        ("RankSpec.__call__", "before it meets the others", "ready"),
        ("join", "", "met the others"),
    ],
    "turnwise.cluster.ranks": [],
    "turnwise.cluster.ranked_learner": [
        ("RankLearner.weights", "gathers weights", ""),
        ("RankedLearner.update", "waits for the ranks", ""),
    ],
    "turnwise.cluster.workers": [("RolloutWorkers.__init__", "", "started engines")],
    "turnwise.cluster.source": [("RemoteEngine.publish", "publishes", "published")],
    "turnwise.cluster.worker": [
        ("RolloutWorker._turned", "turn", ""),
        ("RolloutWorker._ends", "attempt ends", ""),
        ("RolloutWorker._perform", "", "work is done"),
    ],
    "turnwise.cluster.streaming": [("Stream.play", "plays groups", "")],
    "turnwise.setup.parts": [("Evaluator.__call__", "evaluates", "")],
    "turnwise.credit.columns": [("CreditStep.__call__", "has collected", "")],
    "turnwise.learn.local": [
        ("LocalLearner.update", "learns", "has learned"),
        ("LocalLearner.save", "saves", "saved"),
        ("LocalLearner.restore", "restores", ""),
    ],
    "turnwise.learn.optimiser": [("Optimiser.step", "", "stepped")],
    "turnwise.learn.weights": [("Weights.publish", "optimiser", "")],
    "turnwise.learn.checkpoint": [("write_manifest", "before the manifest", "")],
    "turnwise.learn.learner": [("Learner._gradient", "before gradients", "has gradients"), ("Learner.save_model", "exports", "")],
    "turnwise.runs.folder": [("Run.log", "logs", "logged"), ("Run.save_batch", "writes the batch", "")],
}


def happens(moment: str, role: str = "") -> None:
    """This process has come to a moment."""
    role = role or own["role"]
    for number, strike in enumerate(_strikes()):
        ranks = strike.get("rank", own["rank"])
        if (strike["role"], strike["moment"]) != (role, moment) or ranks != own["rank"] or _iteration() < strike["iteration"]:
            continue
        mark = Path(KILLS) / f"struck-{number}"
        try:
            handle = os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            continue
        victims = _victims(strike)
        os.write(handle, json.dumps({"iteration": _iteration(), "victims": victims}).encode())
        os.close(handle)
        for victim in sorted(victims, key=lambda number: number == os.getpid()):
            _kill(victim)


def _kill(victim: int) -> None:
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return


def _strikes() -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads((Path(KILLS) / "strikes.json").read_text())
    except (OSError, ValueError):
        return []
    return found


def _iteration() -> int:
    """The last iteration that was logged; -1 before the first line."""
    try:
        return int((Path(KILLS) / "iteration").read_text())
    except (OSError, ValueError):
        return -1


def _victims(strike: dict[str, Any]) -> list[int]:
    """The processes that die: the one that is here, or another one of its kind."""
    kind, known = strike["kind"], dict(_processes())
    own_kind = strike["role"] == kind or (strike["role"], kind) == ("environment", "worker")
    if own_kind:
        return [os.getpid()]
    engines = sorted(number for number, (title, _) in known.items() if title.startswith(b"ray::RolloutWorker"))
    ranks = sorted(number for number, (title, _) in known.items() if title.startswith(b"ray::Rank"))
    if kind == "node":
        here = os.getpid() if own["role"] != "driver" else (ranks or engines)[0]
        while here in known and b"raylet/raylet" not in known[here][0]:
            here = known[here][1]
        return [here, *_below({here}, known)]
    if kind == "worker":
        here = os.getpid() if own["role"] == "engine" else engines[0]
        return _below({here}, known)[:1]
    return {"engine": engines, "rank": ranks}[kind][:1]


def _below(roots: set[int], known: dict[int, tuple[bytes, int]]) -> list[int]:
    found = sorted(number for number, (_, parent) in known.items() if parent in roots)
    return [*found, *_below(set(found), known)] if found else []


def _processes() -> Iterator[tuple[int, tuple[bytes, int]]]:
    """The processes that belong to the same runs: id, title, parent."""
    mine = f"TURNWISE_KILLS={KILLS}\0".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mine in (folder / "environ").read_bytes():
                    parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                    yield int(folder.name), ((folder / "cmdline").read_bytes(), parent)
            except (OSError, ValueError, IndexError):
                continue


# -- watching ---------------------------------------------------------------------------------------------------------------------------


def _wrapped(function: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if before:
            happens(before)
        found = function(*arguments, **named)
        if after:
            happens(after)
        return found

    return call


def _watch(module: ModuleType, entries: Sequence[tuple[str, str, str]]) -> None:
    for name, before, after in entries:
        holder, _, last = name.rpartition(".")
        target = getattr(module, holder) if holder else module
        setattr(target, last, _wrapped(getattr(target, last), before, after))


def _notes_role(module: ModuleType) -> None:
    """Engines and ranks say what they are when they are made; the driver's log says which iteration it is."""
    if module.__name__ == "turnwise.cluster.worker":
        module.RolloutWorker.__init__ = _first(module.RolloutWorker.__init__, lambda *_: own.update(role="engine"))
    if module.__name__ == "turnwise.cluster.ranks":
        module.Rank.__init__ = _first(module.Rank.__init__, lambda _, factory, rank, size: own.update(role="rank", rank=rank))
    if module.__name__ == "turnwise.runs.folder":
        module.Run.log = _first(module.Run.log, lambda _, metrics: _noted(metrics["iteration"]))


def _first(function: Callable[..., Any], note: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        note(*arguments, **named)
        return function(*arguments, **named)

    return call


def _noted(iteration: int) -> None:
    temporary = Path(KILLS) / f"iteration.{os.getpid()}"
    temporary.write_text(str(int(iteration)))
    temporary.rename(Path(KILLS) / "iteration")


class Watcher(importlib.abc.MetaPathFinder):
    """Wraps what is watched in a module as soon as the module is imported."""

    def __init__(self) -> None:
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name in self._busy or name not in WATCHED:
            return None
        self._busy.add(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def then(module: ModuleType) -> None:
            execute(module)
            _watch(module, WATCHED[name])
            _notes_role(module)

        spec.loader.exec_module = then  # type: ignore[method-assign]
        return spec


if KILLS:
    sys.meta_path.insert(0, Watcher())
