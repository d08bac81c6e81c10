"""UI-S1 (A19): episodes on recorded trajectories, patched with the expert's action where the policy errs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .forms import by_group, deviation


def score(form: float, exact: bool, kind: bool = False, parseable: bool = False) -> float:
    """0.1 format + 0.9 {1 exact, 0.5 the right type only, 0.1 parseable, 0 otherwise}."""
    return 0.1 * form + 0.9 * (1.0 if exact else 0.5 if kind else 0.1 if parseable else 0.0)


def episode(matches: Sequence[bool], threshold: int = 2) -> tuple[int, list[bool]]:
    """(turns played, which of them were patched) given whether the policy would match the expert at each step of the recording.

    A mismatch is patched while fewer than `threshold` errors were patched (-1: always); else the episode stops after that turn.
    """
    patched: list[bool] = []
    for match in matches:
        if not match and threshold != -1 and sum(patched) >= threshold:
            return len(patched) + 1, [*patched, False]
        patched.append(not match)
    return len(patched), patched


def returns(scores: Sequence[float], matches: Sequence[bool], gamma: float = 0.5) -> list[float]:
    """G_k of one episode, backwards: r_k + gamma G_{k+1} where the step matched, else r_k, and the carry restarts at 0."""
    result, carry = [0.0] * len(scores), 0.0
    for k in range(len(scores) - 1, -1, -1):
        carry = scores[k] + gamma * carry if matches[k] else 0.0
        result[k] = carry if matches[k] else scores[k]
    return result


def advantages(
    scores: Sequence[Sequence[float]],
    matches: Sequence[Sequence[bool]],
    groups: Sequence[Any],
    gamma: float = 0.5,
    episode_weight: float = 1.0,
    step_weight: float = 1.0,
    divide: bool = True,
    eps: float = 1e-6,
) -> list[list[float]]:
    """Per episode and step: episode_weight z(score over all steps of the group) + step_weight z(G over the group's episodes at the SAME
    step).

    z with std1 + eps (divide=False: without). One value alone or equal values: 0.
    """
    own = [[g for _ in row] for row, g in zip(scores, groups, strict=True)]
    flat = [x for row in scores for x in row]
    later = [g for row, m in zip(scores, matches, strict=True) for g in returns(row, m, gamma)]
    a = by_group(flat, [g for row in own for g in row], divide, eps=eps)
    b = by_group(later, [(g, k) for row in own for k, g in enumerate(row)], divide, eps=eps)
    it = iter([episode_weight * x + step_weight * y for x, y in zip(a, b, strict=True)])
    return [[next(it) for _ in row] for row in scores]


def kept(group_returns: Sequence[float], least: float = 0.3) -> bool:
    """Dynamic sampling: whether a group stays, the std1 of its steps' returns is at least `least`."""
    return deviation(group_returns, 1) >= least
