"""DPEPO (B9): one policy drives several copies of a task; a turn that repeats itself gains less and costs more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .forms import by_group, mean


def diversity(
    actions: Mapping[int, str],
    history: Mapping[int, Sequence[str]],
    alpha: float = 0.8,
    beta: float = 0.95,
    gamma: float = 0.95,
    omega: float = 0.80,
    none: float = 0.5,
) -> float:
    """W of one turn. actions[e]: the action for copy e in this turn; history[e]: the actions of that copy in EARLIER turns.

    W = 0.5 (omega^dup + mean over copies of (alpha^c1 + gamma^c2 + beta^c3)/3); dup: actions other than "look" minus distinct ones, in this
    turn; c1: how often the copy did this action before; c2: how often it did the pair (its previous action, this action) before; c3: how
    often the pair occurs in the other copies that act, this turn included. A copy's first action has no pair: c2 = c3 = 0. No action:
    `none`.
    """
    if not actions:
        return none
    moves = [a for a in actions.values() if a != "look"]
    dup = len(moves) - len(set(moves))
    parts = []
    for e, action in actions.items():
        before = list(history[e])
        c1 = before.count(action)
        c2 = c3 = 0
        if before:
            pair = (before[-1], action)
            c2 = _pairs(before).count(pair)
            c3 = sum(_pairs([*history[f], actions[f]]).count(pair) for f in actions if f != e)
        parts.append((alpha**c1 + gamma**c2 + beta**c3) / 3)
    return 0.5 * (omega**dup + mean(parts))


def _pairs(xs: Sequence[str]) -> list[tuple[str, str]]:
    return [(xs[i], xs[i + 1]) for i in range(len(xs) - 1)]


def advantages(
    outcomes: Sequence[float], groups: Sequence[int | str], weights: Sequence[Sequence[float]], eps: float = 1e-6
) -> list[list[float]]:
    """Per trajectory and turn: the group z-score A of the outcome (1 if any copy succeeds; std1 + eps) times W if A >= 0, else times 2 -
    W."""
    a = by_group(outcomes, groups, eps=eps)
    return [[a[i] * (w if a[i] >= 0 else 2 - w) for w in row] for i, row in enumerate(weights)]
