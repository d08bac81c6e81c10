"""The lines of a comparison: every registered credit algorithm, some instructive variants, and the truth itself.

A line is an algorithm with options. `critic` is an option of the lab, not of an algorithm: where the column `value` comes from.

    critic=estimated   (default) the mean return seen from the same anchor in an independent batch of the same size; an anchor that did
                       not occur there gets that batch's overall mean. The critic sees what GiGPO sees: anchors.
    critic=exact       V_t(s) by dynamic programming: no critic can be better. An upper bound, not an algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.config.addons import unregistered
from turnwise.credit.registry import algorithms, apply
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats
from turnwise.lab.problems import parse
from turnwise.lab.sample import Batch
from turnwise.lab.signals import FROM_CRITIC, View, runs_here, wanted
from turnwise.util.errors import TurnwiseError, unknown_name

ORACLE = "oracle"
# What each teaches: loops counted once; the two ablations; the public code's statistics; no discount; no division by the deviation;
# what is left of step credit without any anchors; gains and outcomes apart; how much a perfect critic would add.
VARIANTS = (
    "gigpo:once=true",
    "gigpo:omega=0",
    "gigpo:episode_weight=0",
    "gigpo:weighting=step",
    "gigpo:gamma=1",
    "gigpo:norm=none",
    "reinforce_pp:returns=to_go",
    "igpo:normalise=separate",
    "gae:critic=exact",
)
CRITICS = ("estimated", "exact")


@dataclass(frozen=True)
class Line:
    """One line of tables and pictures. `name` is a registered algorithm, or "oracle": the true advantage itself."""

    label: str
    name: str
    options: Mapping[str, Any]
    critic: str = "estimated"

    @property
    def is_bound(self) -> bool:
        """Whether it uses what no algorithm can know; such lines are never marked as best."""
        return self.name == ORACLE or self.critic == "exact"

    def credit(self, view: View) -> NDArray[Any]:
        """Its credit for the rows of one run."""
        if self.name == ORACLE:
            return view.truth
        entry = algorithms[self.name]
        try:
            return apply(entry, view.rollouts(self.critic, wanted(entry)), dict(self.options)).values
        except TurnwiseError as error:
            raise TurnwiseError(f"{self.label} cannot run in the lab: {error}") from None

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns that it reads beyond those of every batch."""
        return () if self.name == ORACLE else algorithms[self.name].needed(dict(self.options))

    @property
    def uses_critic(self) -> bool:
        """Whether its credit depends on a critic's values."""
        return any(need.endswith(".value") or need in FROM_CRITIC for need in self.needs)


def read_line(text: str) -> Line:
    """A line from `name:option=value…`; unknown names and options raise an error that suggests the closest match."""
    name, options = parse(text)
    if name == ORACLE:
        if options:
            raise TurnwiseError(f"{text!r}: the oracle has no options")
        return Line(text, ORACLE, {})
    if name not in algorithms:
        raise unregistered(algorithms.kind, name) or unknown_name(algorithms.kind, name, [*algorithms.names(), ORACLE])
    critic = options.pop("critic", "estimated")
    if critic not in CRITICS:
        raise unknown_name(f"critic of {text!r}:", str(critic), CRITICS)
    return Line(text, name, algorithms[name].bind(options, algorithms.kind), critic)


def choose(texts: Sequence[str] | None) -> list[Line]:
    """The lines that were asked for; by default all algorithms for which the lab has the columns, the variants of those, and the oracle."""
    if texts is None:
        texts = [*(entry.name for entry in algorithms if runs_here(entry)), *VARIANTS, ORACLE]
    if not texts:
        raise TurnwiseError("no credit algorithm is chosen")
    return [read_line(text) for text in texts]


def value_table(batch: Batch, states: int, runs: int) -> tuple[Floats, Ints, Floats]:
    """For each run and anchor the mean return from there (0 if the anchor was not seen) and how often it was seen; for each run the mean
    of all returns."""
    returns = batch.returns_to_go()
    own = batch.anchor < states  # anchors beyond are one-offs, which never occur again
    place = (batch.run * states + batch.anchor)[own]
    count = np.bincount(place, minlength=runs * states).reshape(runs, states)
    total = np.bincount(place, weights=returns[own], minlength=runs * states).reshape(runs, states)
    overall = np.bincount(batch.run, weights=returns, minlength=runs) / np.maximum(np.bincount(batch.run, minlength=runs), 1)
    return total / np.maximum(count, 1), count, overall


def look_up(table: Floats, batch: Batch, unknown: Floats) -> Floats:
    """The values of a batch's turns from a table [runs, anchors]; `unknown` [runs] stands for one-off anchors."""
    own = batch.anchor < table.shape[1]
    known = table[batch.run, np.where(own, batch.anchor, 0)]
    return np.asarray(np.where(own, known, unknown[batch.run]))


def estimated_values(batch: Batch, independent: Batch, states: int, runs: int) -> Floats:
    """The values of this batch by a critic that learned from the independent batch."""
    table, count, overall = value_table(independent, states, runs)
    return look_up(np.where(count > 0, table, overall[:, None]), batch, overall)
