"""What a comparison reads: runs and saved evaluations as plain records. Only files are read, neither torch nor an environment is loaded, so
that sixty runs take a second.

Two results can be compared if they were measured in the same way: the same environment and tasks (`panel_hash`), the same number of
attempts at each, the same temperature and step limit. That is a record's `panel`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.runs.folder import CONFIG, SUMMARY, Run, read_facts
from turnwise.util.errors import TurnwiseError

SWEEP = "sweep.json"


@dataclass(frozen=True)
class Panel:
    """How something was measured. Results with different panels are not comparable."""

    environment: str
    split: str
    hash: str
    size: int
    repeats: int
    temperature: float | None
    max_turns: int
    trials: int = 1

    def differences(self, other: Panel) -> list[str]:
        """The names of what differs. A player without a model (random, expert) has no temperature, and matches any."""
        names = [name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(other, name)]
        return [name for name in names if name != "temperature" or None not in (self.temperature, other.temperature)]


@dataclass(frozen=True)
class Point:
    """One evaluation during training: the result, and the cost so far; `low` and `high`: its interval over tasks."""

    iteration: int
    success: float
    turns: float
    tokens: float
    seconds: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Record:
    """One evaluated run, or one saved evaluation. Task by task: `won` is the share of successful attempts, `types` the type of task, and
    `clusters` what it is a variant of (the task itself, if the environment says nothing). `tracks` are the metrics that were asked for,
    by iteration, and `metrics` the names of all."""

    name: str
    path: Path
    config: Mapping[str, Any]
    seed: int
    success: float
    iteration: int | None = None
    finished: bool = True
    iterations: int | None = None
    panel: Panel | None = None
    tasks: tuple[str, ...] = ()
    won: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), repr=False)
    types: tuple[str, ...] = field(default=(), repr=False)
    clusters: tuple[str, ...] = field(default=(), repr=False)
    curve: tuple[Point, ...] = field(default=(), repr=False)
    tracks: Mapping[str, Mapping[int, float]] = field(default_factory=dict, repr=False)
    metrics: frozenset[str] = field(default=frozenset(), repr=False)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A config as dotted keys; what is unset is the text "none"."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = "none" if value is None else value
    return flat


def find(sources: Iterable[str | Path]) -> list[Path]:
    """The selected runs and evaluation files: a folder of runs means all of them. Each once, in the given order."""
    paths: dict[Path, None] = {}
    for source in sources:
        path = Path(source)
        if path.name == SWEEP:
            path = path.parent
        if path.is_dir() and not (path / CONFIG).is_file():
            inside = sorted(config.parent for config in path.glob(f"*/{CONFIG}"))
            if not inside:
                raise TurnwiseError(f"{path} is neither a run nor a folder of runs: no {CONFIG} lies in it or one step below")
            paths |= dict.fromkeys(inside)
        elif path.is_dir() or (path.is_file() and path.suffix == ".json"):
            paths[path] = None
        else:
            what = "there is no such file or folder" if not path.exists() else "this is not a run"
            raise TurnwiseError(f"{path}: {what}. Give runs, folders of runs, or .json files of `turnwise eval --save`")
    return list(paths)


def read(path: Path, at: str | int = "last", tracked: Sequence[str] = ()) -> Record | None:
    """A run at its last or best evaluation or at that of an iteration, or a saved evaluation; None if a run has no evaluation yet. For a
    run, `tracked` are metrics to include."""
    return _read_run(path, at, tracked) if path.is_dir() else _read_file(path)


def _read_run(folder: Path, at: str | int, tracked: Sequence[str]) -> Record | None:
    run = Run.open(folder)
    config = flatten(run.recipe())
    metrics = run.metrics()
    curve = curve_of(metrics)
    if not curve:
        return None
    point = _point(curve, at, folder)
    evaluated = run.iterations_of("evals")
    measured = run.evaluation(point.iteration) if evaluated else {}
    measurement = _measured(measured, str(config.get("env.name", "")), folder)
    return Record(
        name=folder.name,
        path=folder,
        config=config,
        seed=int(config.get("seed", 0)),
        success=point.success,
        iteration=point.iteration,
        finished=bool(read_facts(folder, SUMMARY).get("finished")),
        iterations=config.get("iterations"),
        curve=curve,
        **measurement,
        tracks=pick(metrics, tracked),
        metrics=frozenset(name for line in metrics for name in line) if tracked else frozenset(),
    )


def _read_file(path: Path) -> Record:
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # not JSON, or not UTF-8
        raise TurnwiseError(f"{path}: not JSON; the file was damaged after it was written, or Turnwise did not write it") from None
    if not isinstance(measured, dict):
        raise TurnwiseError(f"{path}: not a result of Turnwise")
    if "outcomes" not in measured or "panel_hash" not in measured:
        raise TurnwiseError(f"{path} is not an evaluation: `turnwise eval … --save FILE.json` writes one")
    if "config" in measured:
        config = flatten(measured["config"])
    elif path.parent.name == "evals" and (path.parent.parent / CONFIG).is_file():
        config = flatten(Run.open(path.parent.parent).recipe())
    else:
        config = {"file": path.stem}
    if measured.get("player") is not None:
        config = _player(measured, config)
    environment = measured.get("environment", config.get("env.name", ""))
    measurement = _measured(measured, str(environment), path)
    return Record(
        name=path.stem,
        path=path,
        config=config,
        seed=int(config.get("seed", 0)),
        success=float(measured["success"]),
        iteration=measured.get("iteration"),
        **measurement,
    )


def _player(measured: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What distinguishes players: the name and, if it prompts a model, which model and how it is prompted."""
    player = {"player": measured["player"], "env.name": config.get("env.name", "")}
    if measured.get("temperature") is None:  # random, expert: no model was prompted
        return player
    asked = {key: value for key, value in config.items() if key.startswith(("agent.", "engine.", "model."))}
    return player | asked | {name: measured[name] for name in ("model", "examples") if name in measured}


def _measured(measured: Mapping[str, Any], environment: str, path: Path) -> dict[str, Any]:
    """The panel, its tasks in order, and for each the share of attempts won, its type and its cluster."""
    if not measured:
        return {}
    try:
        outcomes: dict[str, list[bool]] = {}
        types: dict[str, str] = {}
        clusters: dict[str, str] = {}
        for outcome in measured["outcomes"]:
            outcomes.setdefault(str(outcome["task"]), []).append(bool(outcome["success"]))
            types[str(outcome["task"])] = str(outcome.get("type") or "")
            clusters[str(outcome["task"])] = str(outcome.get("cluster") or outcome["task"])
        panel = Panel(
            environment,
            str(measured["split"]),
            str(measured["panel_hash"]),
            int(measured["panel_size"]),
            int(measured["repeats"]),
            None if measured["temperature"] is None else float(measured["temperature"]),
            int(measured["max_turns"]),
            max(1, len(measured.get("trials") or ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else f"has another form ({error})"
        raise TurnwiseError(f"{path}: an evaluation in it {what}; it was written by another version of Turnwise, or edited") from None
    won = np.array([sum(each) / len(each) for each in outcomes.values()])
    by_task = {"tasks": outcomes, "types": types.values(), "clusters": clusters.values()}
    return {"panel": panel, "won": won, **{name: tuple(values) for name, values in by_task.items()}}


def pick(metrics: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[int, float]]:
    """By metric: its finite values by iteration. A name that the run has never logged is missing."""
    tracks: dict[str, dict[int, float]] = {}
    for line in metrics:
        for name in names:
            value = line.get(name)
            if isinstance(value, (int, float)) and math.isfinite(value):
                tracks.setdefault(name, {})[int(line["iteration"])] = float(value)
    return tracks


def curve_of(metrics: Sequence[Mapping[str, Any]]) -> tuple[Point, ...]:
    """Every evaluation of a run with the cost so far: turns and sampled tokens of reinforcement, seconds of training (the warm start
    included, evaluations not)."""
    points, turns, tokens, seconds = [], 0.0, 0.0, 0.0
    for line in metrics:
        turns += line.get("collect/turns", 0.0)
        tokens += line.get("collect/response_tokens", 0.0)
        # in older runs the whole clock of iteration 0 holds the evaluation too
        seconds += line.get("time/iteration" if line["iteration"] else "time/sft", 0.0)
        if "eval/success" in line:
            ends = [float(line[name]) if name in line else None for name in ("eval/low", "eval/high")]
            points.append(Point(int(line["iteration"]), float(line["eval/success"]), turns, tokens, seconds, *ends))
    return tuple(points)


def _point(curve: Sequence[Point], at: str | int, folder: Path) -> Point:
    if at == "last":
        return curve[-1]
    if at == "best":
        return max(curve, key=lambda point: (point.success, -point.iteration))
    for point in curve:
        if str(point.iteration) == str(at):
            return point
    iterations = [point.iteration for point in curve]
    raise TurnwiseError(f"{folder} was not evaluated at {at!r}: give last, best, or one of its iterations {iterations}")
