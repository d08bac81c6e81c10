"""Credit functions by name.

A credit function takes rollouts whose rows are sorted by group, trajectory and t, and returns one number per turn. `PerToken` declares
one number per token instead (flat, in the order of `token_offsets`). It and `PerTurn` also carry the critic's targets, because only the
function that discounts knows them. To add one, put a file in this folder or register your own function:

    @turnwise.credit.register("mine", paper="…")
    def mine(r: Rollouts, *, gamma: TurnDiscount = 0.95) -> Floats:
        '''One sentence that says what it does.'''
        return discounted_returns(r, gamma) - …

A function that is a sum can declare its `parts`: `episode`, an attempt's return compared with the mean of its group, and `step`, turns
compared with turns from the same state. Each part names the option that weights it, so that the parts can be computed separately:

    @turnwise.credit.register("mine", parts={"episode": "episode_weight", "step": "omega"})   # a weighted sum of two
    @turnwise.credit.register("mine", parts={"step": None})                                    # step credit and nothing else
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnwise.config.kinds import CREDIT
from turnwise.config.options import Entry, Registry
from turnwise.config.plugins import import_folder
from turnwise.data.rollouts import BUILT_IN, DERIVED, Floats, Rollouts, ragged, split_name
from turnwise.util.errors import TurnwiseError

CreditFunction = Callable[..., "NDArray[Any] | PerTurn | Mapping[str, Any]"]
Level = Literal["turn", "token"]


algorithms: Registry[CreditFunction] = Registry("credit algorithm", partial(import_folder, "turnwise.credit"), CREDIT)
register = algorithms.register


def stands_alone(entry: Entry[CreditFunction], given: Collection[str] = ()) -> bool:
    """Whether an algorithm runs on the columns that every batch has, or that a critic gives: no signal, plan or auxiliary model is needed.
    `given` are columns that are there in addition."""
    return all(need in BUILT_IN or need in DERIVED or need == "group.peers" or need in given for need in entry.needed({}))


def compute(name: str | CreditFunction, rollouts: Rollouts, **options: Any) -> NDArray[np.float32]:
    """The credit of every turn, float32[turns], in the order of the rows (per-token algorithms: float32[tokens], flat). `name` may be a
    function itself."""
    return assign(name, rollouts, **options).values


def assign(name: str | CreditFunction, rollouts: Rollouts, **options: Any) -> Credit:
    """As `compute`, with the level of the values and, for algorithms that use a critic, its targets."""
    entry = algorithms.of(name)
    return apply(entry, rollouts, entry.bind(options, algorithms.kind))


def parts(name: str) -> tuple[str, ...]:
    """The declared parts of an algorithm's credit; empty for an unknown algorithm, for which no code is imported. Pages and warnings
    mention step credit only if this contains `step`."""
    known = algorithms.known(name)
    return tuple(known.parts) if known is not None else ()


def split(name: str | CreditFunction, rollouts: Rollouts, **options: Any) -> dict[str, tuple[Floats, float]]:
    """The parts of a credit, per turn: each by itself, with a weight of 1, and its weight in the sum."""
    entry = algorithms.of(name)
    bound = entry.bind(options, algorithms.kind)
    weighers = [option for option in entry.parts.values() if option is not None]
    result = {}
    for part, own in entry.parts.items():
        alone = {option: 1.0 if option == own else 0.0 for option in weighers}
        result[part] = apply(entry, rollouts, bound | alone).by_turn(rollouts), 1.0 if own is None else float(bound[own])
    return result


@dataclass(frozen=True, eq=False)
class Credit:
    """Credit in the order of the rows. The level is declared and never guessed from a length: a batch whose turns have one token on average
    has as many tokens as turns.

    values    float32, one per turn or one per response token
    level     which of the two
    targets   the targets of a critic at that level: the advantage before normalisation, plus the value; None without a critic
    columns   further columns that the algorithm returned, by level and name
    """

    values: NDArray[np.float32]
    level: Level = "turn"
    targets: Floats | None = None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def by_turn(self, rollouts: Rollouts) -> Floats:
        """One number per turn: unchanged, or the mean over the turn's tokens (0 for a turn without tokens)."""
        exact = np.asarray(self.values, np.float64)
        if self.level == "turn":
            return exact
        sums = np.concatenate([np.zeros(1), np.cumsum(exact)])[rollouts.token_offsets]
        means: Floats = np.diff(sums) / np.maximum(np.diff(rollouts.token_offsets), 1)
        return means


@dataclass(frozen=True)
class PerTurn:
    """The result of an algorithm with a turn-level critic: one value per turn, and the critic's targets."""

    credit: NDArray[Any]
    targets: NDArray[Any] | None = None


class PerToken(PerTurn):
    """The result of a per-token algorithm: one value per token, flat, in the order of `token_offsets`, and the critic's targets."""


def apply(entry: Entry[CreditFunction], rollouts: Rollouts, options: dict[str, Any]) -> Credit:
    """Run a credit function on sorted rows and restore the order of the rows in its result."""
    ordered = rollouts.in_order()
    result = entry.function(ordered, **options)
    further: Mapping[str, Any] = {}
    if isinstance(result, Mapping):
        result, further = _by_name(result, entry.name)
    elif not isinstance(result, PerTurn):
        result = PerTurn(result)
    level: Level = "token" if isinstance(result, PerToken) else "turn"
    size = int(rollouts.token_offsets[-1]) if level == "token" else len(rollouts)
    exact = _checked(result.credit, size, entry.name, "", level)
    largest = np.finfo(np.float32).max
    credit: NDArray[np.float32] = np.clip(exact, -largest, largest).astype(np.float32)
    targets = None if result.targets is None else _checked(result.targets, size, entry.name, " targets of", level)
    columns = {name: _placed(ordered.with_columns({name: values}).column(name), name, rollouts) for name, values in further.items()}
    name = f"{level}.advantage"
    return Credit(_placed(credit, name, rollouts), level, None if targets is None else _placed(targets, name, rollouts), columns)


def _placed(values: NDArray[Any], name: str, rollouts: Rollouts) -> NDArray[Any]:
    """A column of rows in order, brought to the rows' own order."""
    level = split_name(name)[0]
    if rollouts.is_in_order or level in ("group", "trajectory"):
        return values
    result: NDArray[Any] = values[ragged(rollouts.in_order().token_offsets, rollouts.positions) if level == "token" else rollouts.positions]
    return result


def _by_name(columns: Mapping[str, Any], name: str) -> tuple[PerTurn, dict[str, Any]]:
    """Advantages and targets out of the columns that an algorithm returned, and the others."""
    further = dict(columns)
    levels = [level for level in ("turn", "token") if f"{level}.advantage" in further]
    if len(levels) != 1:
        raise TurnwiseError(
            f"credit algorithm {name!r} returned the columns {', '.join(further) or 'none'}; exactly one of turn.advantage and "
            "token.advantage is needed"
        )
    kind = PerToken if levels[0] == "token" else PerTurn
    return kind(further.pop(f"{levels[0]}.advantage"), further.pop(f"{levels[0]}.target", None)), further


def _checked(values: Any, size: int, name: str, what: str, level: Level) -> Floats:
    exact = np.asarray(values, np.float64)
    if exact.shape != (size,):
        raise TurnwiseError(f"credit algorithm {name!r} returned{what} shape {exact.shape}; one value per {level} ({size}) is needed")
    wrong = ~np.isfinite(exact)
    if wrong.any():
        raise TurnwiseError(f"credit algorithm {name!r} returned{what} {exact[wrong.argmax()]} for {level} {int(wrong.argmax())}")
    return exact
