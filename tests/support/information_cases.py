"""What the tests of methods of information and hindsight share: random rollouts, a tokenizer of letters, small runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from conftest import ROOT
from small_runs import WARMED

import turnwise as tw
from turnwise.runs.folder import Run

DRAWERS = str(ROOT / "examples" / "methods" / "gold_gain.py") + ":Drawers"
SMALL = WARMED | {"iterations": 1}


def start(out: Path, **changes: Any) -> Run:
    """A run on the number line, or on what `changes` say, at the smallest size."""
    return Run.open(tw.train(ROOT / "recipes" / "numberline-tiny.toml", out=str(out), quiet=True, **{**SMALL, **changes}).folder)


def in_drawers(out: Path, **changes: Any) -> Run:
    """The same where an answer lies in one of three drawers, and tasks know it."""
    own = {"env.name": DRAWERS, "env.max_turns": 4, "env.options": {}, "sft.tasks": 25}
    return start(out, **own, **changes)


def rollouts(seed: int, columns: dict[str, Any] | None = None, groups: int = 3, size: int = 4, turns: int = 5) -> tw.Rollouts:
    """Groups of trajectories of 1 to `turns` turns with 1 to 4 tokens, in order; a reward at the end, and now and then before."""
    rng = np.random.default_rng(seed)
    rows = [(g, f"{g}-{i}", t, n) for g in range(groups) for i in range(size) for n in [int(rng.integers(1, turns + 1))] for t in range(n)]
    reward = [float(rng.integers(0, 2)) if t == n - 1 else float(rng.random() < 0.1) for _, _, t, n in rows]
    return tw.Rollouts.from_columns(
        group=[row[0] for row in rows],
        trajectory=[row[1] for row in rows],
        t=[row[2] for row in rows],
        reward=reward,
        anchor=rng.integers(0, 3, len(rows)),
        tokens=rng.integers(1, 5, len(rows)),
    ).in_order()


def paths(r: tw.Rollouts) -> list[np.ndarray]:
    """The rows of each trajectory of rollouts that are in order."""
    return np.split(np.arange(len(r)), np.flatnonzero(np.diff(r.trajectory)) + 1)


class Letters:
    """A tokenizer with one token per letter, and a control token 0."""

    all_special_ids = (0,)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids: Any) -> str:
        return "".join(chr(number) if number else "<end>" for number in ids)


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]
