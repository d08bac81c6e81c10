"""Credit as columns of a batch: computed once, kept with it, and read by everybody who looks at the batch later.

    batch = give(batch, "gigpo", gamma=0.95)
    batch.column("turn.advantage")

An algorithm may return its columns by name, `{"token.advantage": …, "token.target": …, "turn.mine": …}`, instead of an array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.credit.registry import Credit, algorithms, assign, split
from turnwise.data.batch import Batch
from turnwise.data.rollouts import ADVANTAGE, TARGET, Floats, Rollouts

PART = "credit_"  # turn.credit_step: a part of the advantage, alone and unweighted


def give(batch: Batch, name: str, **options: Any) -> Batch:
    """The batch with its advantages, the targets of a critic where the algorithm has one, further columns that it returns and, where the
    advantage is a sum of several parts, each part."""
    result = assign(name, batch.rollouts, **options)
    given: dict[str, Any] = {**result.columns, f"{result.level}.{ADVANTAGE}": result.values}
    if result.targets is not None:
        given[f"{result.level}.{TARGET}"] = result.targets
    batch = batch.with_columns(given)
    if len(algorithms[name].parts) > 1:
        own = split(name, batch.rollouts, **options)
        batch = batch.with_columns({f"turn.{PART}{part}": values for part, (values, _) in own.items()})
    return batch


def credit_of(rollouts: Rollouts) -> Credit | None:
    """The advantages that were given, with their level; None if there are none."""
    level = rollouts.advantage_level
    if level is None:
        return None
    target = f"{level}.{TARGET}"
    return Credit(rollouts.column(f"{level}.{ADVANTAGE}"), level, rollouts.column(target) if rollouts.has(target) else None)


def parts_of(rollouts: Rollouts, name: str, options: Mapping[str, Any]) -> dict[str, tuple[Floats, float]]:
    """The parts of the advantages that were given, each alone, and its weight in the sum."""
    known = name in algorithms
    result: dict[str, tuple[Floats, float]] = {}
    for column, values in rollouts.extra.items():
        if column.startswith(PART):
            part = column.removeprefix(PART)
            weigher = algorithms[name].parts.get(part) if known else None
            result[part] = values, float(algorithms[name].bind(options, algorithms.kind)[weigher]) if weigher else 1.0
    return result
