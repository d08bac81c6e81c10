"""The numbers of a run: one flat dictionary per iteration, names with a slash: component / quantity."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def numbers(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Values as flat floats under a prefix; mappings inside are flattened, what is not a finite number is left out."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= numbers(f"{prefix}/{name}", value)
        elif isinstance(value, (bool, int, float)) and math.isfinite(value):
            found[f"{prefix}/{name}"] = float(value)
    return found


class Clock:
    """Seconds by phase of one iteration. What was measured before counts as part of it."""

    def __init__(self, **before: float) -> None:
        self.phases = dict(before)
        self._start = time.monotonic() - sum(before.values())

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.phases[phase] = self.phases.get(phase, 0.0) + time.monotonic() - start

    @property
    def total(self) -> float:
        return time.monotonic() - self._start

    def metrics(self, counts: Mapping[str, float], ahead: bool = False) -> dict[str, float]:
        """Seconds by phase, in total, and tokens per second: sampled tokens over the time of collecting. If that goes on `ahead` of the
        learner, it takes the whole iteration."""
        seconds, total = {f"time/{phase}": value for phase, value in self.phases.items()}, self.total
        rate = counts.get("collect/response_tokens", 0.0) / max(total if ahead else self.phases["collect"], 1e-9)
        return seconds | {"time/iteration": total, "time/tokens_per_second": rate}
