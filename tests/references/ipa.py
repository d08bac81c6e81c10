"""IPA (A18): the unit of credit is the chunk, all tokens between two interactions (a turn)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .forms import Rows, clip, mean


def chunk_ratio(logprobs: Sequence[float], old: Sequence[float]) -> float:
    """rho_c = exp(mean over the chunk's tokens of logp - old), exponent held in [-20, 20]."""
    return math.exp(clip(mean([x - y for x, y in zip(logprobs, old, strict=True)]), -20.0, 20.0))


def losses(logprobs: Rows, old: Rows, returns: Sequence[float], positive: Sequence[bool], mask: Sequence[bool]) -> tuple[Rows, Rows]:
    """(loss, gradient) per token; a row is a CHUNK with its return G, whether its trajectory is positive (final reward > 0), and m_c.

    positive: -m G logp; negative: -m sg(clip(rho_c, 0, 1)) G logp. Masked chunks: 0.
    """
    loss: Rows = []
    grad: Rows = []
    for row, before, g, good, m in zip(logprobs, old, returns, positive, mask, strict=True):
        w = (1.0 if good else clip(chunk_ratio(row, before), 0.0, 1.0)) * g if m else 0.0
        loss.append([-w * x for x in row])
        grad.append([-w for _ in row])
    return loss, grad
