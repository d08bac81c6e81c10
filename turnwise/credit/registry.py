"""Credit functions by name.

A credit function takes rollouts whose rows are sorted by group, trajectory and t, and returns one number a turn, or one a token (flat,
in the order of `token_offsets`). To add one, put a file in this folder or register a function of your own:

    @turnwise.credit.register("mine", paper="…")
    def mine(r: Rollouts, *, gamma: TurnDiscount = 0.95) -> Floats:
        '''One sentence that says what it does.'''
        return discounted_returns(r, gamma) - …
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.errors import TurnwiseError
from turnwise.options import Entry, Registry
from turnwise.rollouts import Rollouts, ragged

CreditFunction = Callable[..., "NDArray[Any] | PerToken"]


def _load() -> None:
    """Import every file of this folder: that is where the built-in algorithms register themselves."""
    import turnwise.credit as room

    for module in pkgutil.iter_modules(room.__path__):
        importlib.import_module(f"{room.__name__}.{module.name}")


algorithms: Registry[CreditFunction] = Registry("credit algorithm", _load)
register = algorithms.register


def compute(name: str, rollouts: Rollouts, **options: Any) -> NDArray[np.float32]:
    """The credit of every turn, float32[turns], in the rows' own order (per-token algorithms: float32[tokens], flat)."""
    entry = algorithms[name]
    return apply(entry, rollouts, entry.bind(options, algorithms.kind))


@dataclass(frozen=True)
class PerToken:
    """What a per-token algorithm returns: one value a token, flat, in the order of `token_offsets`."""

    credit: NDArray[Any]


def apply(entry: Entry[CreditFunction], rollouts: Rollouts, options: dict[str, Any]) -> NDArray[np.float32]:
    """Run a credit function on rows in order and bring its result back to the rows' own order."""
    result = entry.function(rollouts.in_order(), **options)
    by_token = isinstance(result, PerToken)
    exact = np.asarray(result.credit if isinstance(result, PerToken) else result, np.float64)
    want, unit = (int(rollouts.token_offsets[-1]), "token") if by_token else (len(rollouts), "turn")
    if exact.shape != (want,):
        raise TurnwiseError(f"credit algorithm {entry.name!r} returned shape {exact.shape}; one value a {unit} ({want}) is needed")
    wrong = ~np.isfinite(exact)
    if wrong.any():
        raise TurnwiseError(f"credit algorithm {entry.name!r} returned {exact[wrong.argmax()]} for {unit} {int(wrong.argmax())}")
    largest = np.finfo(np.float32).max
    credit: NDArray[np.float32] = np.clip(exact, -largest, largest).astype(np.float32)
    if rollouts.is_in_order:
        return credit
    place = ragged(rollouts.in_order().token_offsets, rollouts.positions) if by_token else rollouts.positions
    return credit[place]
