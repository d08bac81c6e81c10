"""SERL (B6): the advantage of action tokens is reweighted by how a policy that knows the feedback would have rated them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from references.forms import clip


def mixing(step: int, start: float = 0.5, steps: int = 50) -> float:
    """lam = start * max(0, 1 - step/steps)."""
    return start * max(0.0, 1.0 - step / steps)


def weight(advantage: float, teacher: float, logprob: float, width: float = 0.2) -> float:
    """w_t = clip(exp(sign(A)(teacher - logp)), 1 - width, 1 + width), a constant; sign(0) = 0 gives 1."""
    sign = (advantage > 0) - (advantage < 0)
    return clip(math.exp(clip(sign * (teacher - logprob), -20.0, 20.0)), 1 - width, 1 + width)


def advantages(
    advantage: Sequence[float],
    teacher: Sequence[float],
    logprobs: Sequence[float],
    action: Sequence[bool],
    lam: float = 0.5,
    width: float = 0.2,
) -> list[float]:
    """Per token: A((1 - lam) + lam w_t) on tokens of the action, A elsewhere. All lists have one entry per token."""
    result = []
    for a, t, x, inside in zip(advantage, teacher, logprobs, action, strict=True):
        result.append(a * ((1 - lam) + lam * weight(a, t, x, width)) if inside else a)
    return result
