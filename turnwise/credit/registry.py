"""Credit functions by name.

A credit function takes rollouts whose rows are sorted by group, trajectory and t, and returns one number per turn. `PerToken` says that it
is one per token instead (flat, in the order of `token_offsets`); it and `PerTurn` also carry what a critic should learn, because only the
function that discounts knows how. To add one, put a file in this folder or register a function of your own:

    @turnwise.credit.register("mine", paper="…")
    def mine(r: Rollouts, *, gamma: TurnDiscount = 0.95) -> Floats:
        '''One sentence that says what it does.'''
        return discounted_returns(r, gamma) - …

What a function is the sum of can be said with `parts`: `episode`, an attempt's return compared with the mean of its group, and `step`,
turns compared that started from the same state. Each names the option that weighs it, so that the others can be left out one by one:

    @turnwise.credit.register("mine", parts={"episode": "episode_weight", "step": "omega"})   # a weighted sum of two
    @turnwise.credit.register("mine", parts={"step": None})                                    # step credit and nothing else
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnwise.config.options import Entry, Registry
from turnwise.data.rollouts import Floats, Rollouts, ragged, split_name
from turnwise.util.errors import TurnwiseError

CreditFunction = Callable[..., "NDArray[Any] | PerTurn | PerToken | Mapping[str, Any]"]
Level = Literal["turn", "token"]


def _load() -> None:
    """Import every file of this folder: that is where the built-in algorithms register themselves."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")


algorithms: Registry[CreditFunction] = Registry("credit algorithm", _load)
register = algorithms.register


def compute(name: str, rollouts: Rollouts, **options: Any) -> NDArray[np.float32]:
    """The credit of every turn, float32[turns], in the rows' own order (per-token algorithms: float32[tokens], flat)."""
    return assign(name, rollouts, **options).values


def assign(name: str, rollouts: Rollouts, **options: Any) -> Credit:
    """As `compute`, with what belongs to the numbers: their level and, from algorithms that use a critic, its targets."""
    entry = algorithms[name]
    return apply(entry, rollouts, entry.bind(options, algorithms.kind))


def parts(name: str) -> tuple[str, ...]:
    """What an algorithm's credit is the sum of, as far as it says so; nothing for one that is not known here. Pages and warnings speak of
    step credit only where this holds `step`."""
    return tuple(algorithms[name].parts) if name in algorithms else ()


def split(name: str, rollouts: Rollouts, **options: Any) -> dict[str, tuple[Floats, float]]:
    """The parts of a credit, per turn: each alone, as with a weight of 1 and the others left out, and its weight in the sum."""
    entry = algorithms[name]
    bound = entry.bind(options, algorithms.kind)
    weighers = [option for option in entry.parts.values() if option is not None]
    found = {}
    for part, own in entry.parts.items():
        alone = {option: 1.0 if option == own else 0.0 for option in weighers}
        found[part] = apply(entry, rollouts, bound | alone).by_turn(rollouts), 1.0 if own is None else float(bound[own])
    return found


@dataclass(frozen=True, eq=False)
class Credit:
    """Credit in the rows' own order. The level is said and never told from a length: a batch whose turns have one token on average has as
    many tokens as turns.

    values    float32, one per turn or one per response token
    level     which of the two
    targets   what a critic of that level should learn: the advantage before it was normalised, plus the value; None without a critic
    columns   further columns that the algorithm returned, by level and name
    """

    values: NDArray[np.float32]
    level: Level = "turn"
    targets: Floats | None = None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def by_turn(self, rollouts: Rollouts) -> Floats:
        """One number per turn: as it is, or the mean over the turn's tokens (0 for a turn without tokens)."""
        exact = np.asarray(self.values, np.float64)
        if self.level == "turn":
            return exact
        sums = np.concatenate([np.zeros(1), np.cumsum(exact)])[rollouts.token_offsets]
        means: Floats = np.diff(sums) / np.maximum(np.diff(rollouts.token_offsets), 1)
        return means


@dataclass(frozen=True)
class PerTurn:
    """What an algorithm with a critic of turns returns: one value per turn, and the critic's targets."""

    credit: NDArray[Any]
    targets: NDArray[Any] | None = None


@dataclass(frozen=True)
class PerToken:
    """What a per-token algorithm returns: one value per token, flat, in the order of `token_offsets`, and the critic's targets."""

    credit: NDArray[Any]
    targets: NDArray[Any] | None = None


def apply(entry: Entry[CreditFunction], rollouts: Rollouts, options: dict[str, Any]) -> Credit:
    """Run a credit function on rows in order and bring its result back to the rows' own order."""
    ordered = rollouts.in_order()
    result = entry.function(ordered, **options)
    further: Mapping[str, Any] = {}
    if isinstance(result, Mapping):
        result, further = _by_name(result, entry.name)
    elif not isinstance(result, (PerTurn, PerToken)):
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
    found: NDArray[Any] = values[ragged(rollouts.in_order().token_offsets, rollouts.positions) if level == "token" else rollouts.positions]
    return found


def _by_name(columns: Mapping[str, Any], name: str) -> tuple[PerTurn | PerToken, dict[str, Any]]:
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
