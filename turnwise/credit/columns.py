"""Credit as columns of a batch: computed once, kept with it, and read by everybody who looks at the batch later.

    batch = give(batch, "gigpo", gamma=0.95)
    batch.column("turn.advantage")

An algorithm may return its columns by name, `{"token.advantage": …, "token.target": …, "turn.mine": …}`, instead of an array. `CreditStep`
is credit as one step of the loop: masks, advantages, the critic's targets, and the metrics about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from turnwise.config.options import Entry
from turnwise.credit.diagnose import observe
from turnwise.credit.gae import token_rows
from turnwise.credit.registry import Credit, CreditFunction, algorithms, assign, split
from turnwise.credit.segments import PER_TURN, discounted_returns
from turnwise.data.batch import Batch
from turnwise.data.masks import SharedPrefix, masked
from turnwise.data.rollouts import ADVANTAGE, TARGET, Floats, Rollouts
from turnwise.util.errors import TurnwiseError
from turnwise.util.metrics import numbers

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


@dataclass(frozen=True)
class CreditStep:
    """A credit function with its options. `value_level`: the level of the critic whose targets are added, if there is one.
    `shared_prefix`: how often turns that branches share are learned from."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shared_prefix: SharedPrefix = "once"
    value_level: Literal["turn", "token"] | None = None

    def __call__(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """The batch with its advantages, and the metrics about them, by `credit/NAME`."""
        batch = give(masked(batch, self.shared_prefix), self.name, **self.options)
        given = credit_of(batch.rollouts)
        metrics = observe(self.name, dict(self.options), batch.rollouts, () if given is None else given.values)
        if given is not None and self.value_level is not None:
            entry = algorithms[self.name]
            options = entry.bind(dict(self.options), algorithms.kind)
            targets = targets_of(given, batch.rollouts, entry, options, self.value_level)
            batch = batch.with_columns({f"{self.value_level}.target": targets})
        return batch, numbers("credit", metrics)


def targets_of(
    credit: Credit, rollouts: Rollouts, entry: Entry[CreditFunction], options: dict[str, Any], level: Literal["turn", "token"]
) -> Floats:
    """What a critic of this level should learn: the credit function's own targets. With an algorithm that uses no critic it learns the
    return from a turn on, at the algorithm's discount per turn (if it has one) and the same on all tokens of the turn."""
    if credit.targets is not None:
        if credit.level != level:
            raise TurnwiseError(
                f"credit algorithm {entry.name!r} has targets per {credit.level}, and the critic has values per {level}: "
                f'set learner.value.level="{credit.level}"'
            )
        return credit.targets
    discount = entry.options.get("gamma")
    gamma = float(options["gamma"]) if discount is not None and discount.help is PER_TURN else 1.0
    ordered = rollouts.in_order()
    charged = replace(ordered, reward=ordered.reward - float(options.get("invalid_penalty", 0.0)) * ~ordered.valid)
    to_go = discounted_returns(charged, gamma)[rollouts.positions]
    return to_go[token_rows(rollouts)] if level == "token" else to_go
