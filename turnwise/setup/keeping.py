"""Checkpoints of all weights of a run: the learner's and those of further models, written by one process or by several together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.learn import checkpoint
from turnwise.learn.auxiliary.models import Models
from turnwise.learn.learner import Learner


def keep_weights(
    learner: Learner, models: Models, folder: Path, step: int, state: Mapping[str, Any], score: float | None, keep: int
) -> None:
    """Write checkpoint `step`: all weights, and this state."""
    tensors, numbers = learner.state()
    further, kept = models.state()
    state = {**state, "learner": numbers, "models": kept}
    if learner.ranks is None:
        checkpoint.save(folder, step, tensors | further, state, score=score, keep=keep)
    else:
        checkpoint.save_together(learner.ranks, folder, step, tensors | further, state, score=score, keep=keep)


def restored_weights(learner: Learner, models: Models, path: Path) -> dict[str, Any]:
    """Load the weights of a checkpoint that is intact. Returns its state."""
    found = checkpoint.read(path, models.like, learner.ranks)
    learner.load_state(found.tensors, found.state["learner"])
    models.load_state(found.tensors, found.state.get("models", {}))
    return found.state
