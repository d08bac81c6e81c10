"""The metrics of an update, step by step, and their summary as plain numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from turnwise.learn.optimiser import Step
from turnwise.objectives.value import explained_variance


class StepLog:
    """Collects the metrics of optimiser steps, the seconds of phases and a few counts.

    Skipped steps are only counted: numbers that are not finite would hide all others.
    """

    def __init__(self) -> None:
        self._steps: list[dict[str, float]] = []
        self._counts: dict[str, float] = {"steps": 0, "skipped_steps": 0, "stopped_early": 0}
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside, under this name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def step(self, metrics: Mapping[str, float], step: Step) -> None:
        """An optimiser step, taken or skipped."""
        self._counts["steps" if step.taken else "skipped_steps"] += 1
        if step.taken:
            self._steps.append({**metrics, "grad_norm": step.grad_norm, "grad_norm_max": step.grad_norm, "lr": step.lr})

    def stopped(self, metrics: Mapping[str, float]) -> None:
        """The update ended before this step."""
        self._counts["stopped_early"] = 1
        self._counts["kl_at_stop"] = metrics["kl_old_k3"]

    def count(self, name: str) -> None:
        """One more of these."""
        self._counts[name] = self._counts.get(name, 0) + 1

    def add(self, **counts: float) -> None:
        """Further numbers of the whole update."""
        self._counts.update(counts)

    def summary(self, lr: float) -> dict[str, float]:
        """Means over the steps (the largest for names that end in `_max`), counts and seconds. `lr` is the value if no step was taken."""
        names = list(dict.fromkeys(name for step in self._steps for name in step))
        result: dict[str, float] = {"lr": lr}
        for name in names:
            values = [step[name] for step in self._steps if name in step]
            result[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
        if "value_target" in result:
            result["explained_variance"] = sum(map(explained_variance, self._steps)) / len(self._steps)
        seconds = {f"seconds_{name}": value for name, value in self._seconds.items()}
        return result | self._counts | seconds
