"""The covariance of advantage and log-prob per token, which Clip-Cov and KL-Cov choose tokens by.

    cov(token) = (A − mean A) · (old log-prob − mean old log-prob)        means over the tokens of the mini-batch that count

It is computed once per mini-batch, before it is cut, so the choice does not depend on the size of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def covariance(columns: Mapping[str, Any]) -> tuple[Floats, Mask]:
    """The covariance of every token of a mini-batch, and which tokens count. A constant column gives exactly 0."""
    counted = np.asarray(columns["weight"]) != 0
    return _centred(columns["advantage"], counted) * _centred(columns["old_logprob"], counted), counted


def share(fraction: float, tokens: int) -> int:
    """A fraction of a number of tokens: at least one, unless the fraction is 0."""
    return min(tokens, max(1, int(fraction * tokens))) if fraction > 0 else 0


def _centred(column: Any, counted: Mask) -> Floats:
    values = np.where(counted, np.asarray(column, np.float64), 0.0)  # what does not count may hold anything
    if not counted.any():
        return values
    values = values - values[counted.argmax()]  # equal values then differ from their mean by exactly 0
    centred: Floats = values - values[counted].mean()
    return centred
