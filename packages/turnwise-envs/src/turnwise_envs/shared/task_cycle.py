"""Endless tasks of several kinds."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.data.tasks import Task, TaskSet
from turnwise.util.errors import unknown_name

SPLITS = {"train": 0, "valid": 1, "test": 2}
SIZE = 100_000  # tasks of a split if no number is asked for


def in_turn(env: str, kinds: Sequence[str], split: str, n: int | None, key: str) -> TaskSet:
    """The kinds in turn, each with the seeds of its split: every third number belongs to one. `key` names the kind in a task's data."""
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)

    def make(index: int) -> Task:
        kind, seed = kinds[index % len(kinds)], index // len(kinds) * len(SPLITS) + SPLITS[split]
        return Task(f"{kind}-{seed}", split, {key: kind, "seed": seed})

    return TaskSet.lazy(SIZE if n is None else n, make, f"{env} {split}")
