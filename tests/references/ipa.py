"""IPA (A18): the unit of credit is the chunk, all tokens between two interactions (a turn)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .forms import Rows, clip, discounted, mean


def chunk_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_k = r_k + gamma G_{k+1} over the chunks of one trajectory; with a reward only at the end gamma^(chunks to the end) R. gamma is not
    published."""
    return discounted(rewards, gamma)


def chunk_ratio(logprobs: Sequence[float], old: Sequence[float]) -> float:
    """rho_c = exp(mean over the chunk's tokens of logp - old), exponent held in [-20, 20]."""
    return math.exp(clip(mean([x - y for x, y in zip(logprobs, old, strict=True)]), -20.0, 20.0))


def kept(old: Sequence[float], roll: Sequence[float], threshold: float) -> bool:
    """m_c: whether the geometric ratio exp(mean(old - roll)) of learner and engine does not exceed the threshold (not published)."""
    return chunk_ratio(old, roll) <= threshold


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
