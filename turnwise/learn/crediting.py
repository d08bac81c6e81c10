"""Credit as one step of the loop: masks, advantages, the critic's targets, and the metrics about them. It changes nothing but the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from turnwise import credit
from turnwise.data.batch import Batch
from turnwise.data.masks import SharedPrefix, masked
from turnwise.learn.auxiliary.critic import targets_of
from turnwise.util.metrics import numbers


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
        batch = credit.give(masked(batch, self.shared_prefix), self.name, **self.options)
        given = credit.credit_of(batch.rollouts)
        metrics = credit.observe(self.name, dict(self.options), batch.rollouts, () if given is None else given.values)
        if given is not None and self.value_level is not None:
            entry = credit.algorithms[self.name]
            options = entry.bind(dict(self.options), credit.algorithms.kind)
            targets = targets_of(given, batch.rollouts, entry, options, self.value_level)
            batch = batch.with_columns({f"{self.value_level}.target": targets})
        return batch, numbers("credit", metrics)
