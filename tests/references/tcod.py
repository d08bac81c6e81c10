"""TCOD (B8): distillation from a teacher on the student's own tokens, with a growing horizon."""

from __future__ import annotations

from .forms import Rows


def advantages(teacher: Rows, old: Rows, coefficient: float = 1.0) -> Rows:
    """A_t = coefficient (log pi_teacher - log pi_student,old) per token; a constant in the loss."""
    return [[coefficient * (x - y) for x, y in zip(a, b, strict=True)] for a, b in zip(teacher, old, strict=True)]


def cap_forward(step: int, every: int = 6, limit: int = 30) -> int:
    """f2b: the rollout's length in turns, min(1 + step // every, limit), step from 0."""
    return min(1 + step // every, limit)


def replayed_backward(step: int, actions: int, every: int = 5) -> int:
    """b2f: how many of the expert's `actions` are played before the student acts, max(0, actions - 1 - step // every)."""
    return max(0, actions - 1 - step // every)
