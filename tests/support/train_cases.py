"""Small training runs that several suites start, and how their results are compared."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from conftest import ROOT
from launching import Launched
from safetensors.torch import load_file

import turnwise as tw
from turnwise.runs.reporter import Reporter

BANDIT = f"{ROOT / 'tests' / 'support' / 'bandit_env.py'}:Bandit"


TINY: dict[str, Any] = {
    "env.name": BANDIT,
    "env.tasks": 8,
    "iterations": 4,
    "device": "cpu",
    "agent.prompt": "action",
    "agent.show_actions": False,
    "agent.max_prompt_tokens": 96,
    "agent.context": "full",
    "model.tiny.layers": 1,
    "model.tiny.hidden": 32,
    "model.tiny.heads": 2,
    "model.tiny.max_length": 128,
    "model.tiny.vocabulary_tasks": 2,
    "engine.max_tokens": 3,
    "collect.groups": 2,
    "collect.group_size": 4,
    "learner.lr": 3e-3,
    "eval.n": 4,
    "run.checkpoint_every": 1,
}


def start(out: Path, **changes: Any) -> tw.api.Result:  # type: ignore[name-defined]
    return tw.train(**{**TINY, "out": str(out), "name": "try", **changes})


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model" / "model.safetensors")


def without_times(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if "time/" not in key and "seconds" not in key} for line in metrics]


def ended_alike(one: Any, other: Any) -> bool:
    """Whether two runs have the same log, without times, and the same weights."""
    first, second = weights(one.folder), weights(other.folder)
    same_weights = first.keys() == second.keys() and all((first[name] == second[name]).all() for name in first)
    return same_weights and without_times(one.metrics) == without_times(other.metrics)


def wait_for(condition: Any, process: Launched) -> None:
    until = time.monotonic() + 120
    while not condition() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)


class Heard(Reporter):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Impatient(Reporter):
    """Presses Ctrl-C, or sends another signal, when a phase begins for the nth time."""

    def __init__(self, name: str, nth: int = 1, signal: signal.Signals = signal.SIGINT):
        self.name, self.left, self.signal = name, nth, signal

    def phase(self, name: str, total: int | None = None, unit: str = "") -> None:
        self.left -= name == self.name
        if name == self.name and self.left == 0:
            os.kill(os.getpid(), self.signal)
