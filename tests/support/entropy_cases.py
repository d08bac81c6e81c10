"""What the tests of the entropy methods share: a tiny run, and trajectories with reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from conftest import ROOT
from small_runs import WARMED

import turnwise as tw
from turnwise.runs.folder import Run

SMALL = WARMED | {"iterations": 1, "learner.minibatches": 1, "sft.tasks": 16, "sft.steps": 6, "eval.every": 0}


def run_of(method: str, out: Path, **changes: Any) -> Run:
    """A run of the number line with a method, at the smallest size."""
    recipe = ROOT / "recipes" / "numberline-tiny.toml"
    return Run.open(tw.train(recipe, out=str(out), quiet=True, **{**SMALL, "method.name": method, **changes}).folder)


def reported(rng: np.random.Generator, tokens: int, tops: int = 10) -> dict[str, tuple[float, ...]]:
    """Reports of a response: an entropy and the log-probs of the most likely tokens."""
    logits = rng.normal(size=(tokens, tops + 5)) * rng.uniform(0.5, 4)
    logprobs = np.sort(logits - np.log(np.exp(logits).sum(1, keepdims=True)), axis=1)[:, ::-1]
    columns = {f"top_logprob_{place + 1}": tuple(logprobs[:, place]) for place in range(tops)}
    return {"entropy": tuple(-(np.exp(logprobs) * logprobs).sum(1)), **columns}


def turn_of(rng: np.random.Generator, tokens: int, **more: Any) -> tw.Turn:
    """A turn with this many tokens and with reports."""
    return tw.Turn("state", response_ids=list(range(tokens)), logprobs=[-1.0] * tokens, reports=reported(rng, tokens), **more)
