"""HiPER (A13): advantages inside subgoal segments, across segments, and for the decision to switch."""

from __future__ import annotations

import math
from collections.abc import Sequence


def segments(switches: Sequence[bool]) -> list[tuple[int, int]]:
    """(first, last) turn of each segment; a segment starts at turn 0 and at every turn that says SWITCH (missing or empty text: KEEP)."""
    starts = [k for k in range(len(switches)) if k == 0 or switches[k]]
    return [(s, (starts[i + 1] if i + 1 < len(starts) else len(switches)) - 1) for i, s in enumerate(starts)]


def low(
    rewards: Sequence[float], switches: Sequence[bool], v_low: Sequence[float], v_high: Sequence[float], done: bool,
    gamma: float = 1.0, lam: float = 1.0, bootstrap: bool = False,
) -> list[float]:  # fmt: skip
    """A_low per turn of one trajectory. Within a segment v_next is V_low of the next turn; at its end V_high of the next segment's first
    turn.

    At the trajectory's end: 0 if done; if truncated, V_low of the last turn itself with `bootstrap`, else 0.
    """
    result = [0.0] * len(rewards)
    for first, last in segments(switches):
        carry = 0.0
        for k in range(last, first - 1, -1):
            if k < last:
                following = v_low[k + 1]
            elif last + 1 < len(rewards):
                following = v_high[last + 1]
            else:
                following = v_low[k] if bootstrap and not done else 0.0
            carry = rewards[k] + gamma * following - v_low[k] + gamma * lam * carry
            result[k] = carry
    return result


def high(
    rewards: Sequence[float], switches: Sequence[bool], v_high: Sequence[float], done: bool,
    gamma: float = 1.0, lam: float = 0.95, bootstrap: bool = False,
) -> dict[int, float]:  # fmt: skip
    """A_high by the first turn of each segment: delta = R_seg + gamma^d V_high(next start) - V_high(start), A = delta + gamma^d lam
    A(next).

    d: the segment's length. After the last segment 0 if done; if truncated, V_high of its own start with `bootstrap`, else 0.
    """
    result: dict[int, float] = {}
    carry = 0.0
    for first, last in reversed(segments(switches)):
        d = last - first + 1
        gain = math.fsum(gamma**j * rewards[first + j] for j in range(d))
        carry = gain + gamma**d * _after(first, last, v_high, done, bootstrap, len(rewards)) - v_high[first] + gamma**d * lam * carry
        result[first] = carry
    return result


def _after(first: int, last: int, v_high: Sequence[float], done: bool, bootstrap: bool, turns: int) -> float:
    if last + 1 < turns:
        return v_high[last + 1]
    return v_high[first] if bootstrap and not done else 0.0


def term(
    rewards: Sequence[float], switches: Sequence[bool], v_high: Sequence[float], v_term: Sequence[float], done: bool,
    gamma: float = 1.0, bootstrap: bool = False,
) -> list[float]:  # fmt: skip
    """A_term per turn: G - V_term, G = r + gamma G_next inside the segment, after its end V_high of the next start (or as in `high`)."""
    result = [0.0] * len(rewards)
    for first, last in segments(switches):
        carry = _after(first, last, v_high, done, bootstrap, len(rewards))
        for k in range(last, first - 1, -1):
            carry = rewards[k] + gamma * carry
            result[k] = carry - v_term[k]
    return result


def shaped(
    rewards: Sequence[float], switches: Sequence[bool], subgoals: Sequence[str], valid: Sequence[bool],
    keep: float = -0.3, mode: str = "fixed", consistency: float = -0.3, invalid: float = 0.1,
) -> list[float]:  # fmt: skip
    """Turn rewards with the penalties: `keep` on each KEEP turn (normalized: keep * (KEEP turns / turns) spread over the KEEP turns, none
    for a
    trajectory of one turn); `consistency` on a KEEP turn whose subgoal differs from the turn before, both being non-empty; -invalid.

    switches[k] is what the turn says (also at turn 0, which starts a segment either way).
    """
    result = list(rewards)
    kept = [k for k in range(len(rewards)) if not switches[k]]
    for k in kept:
        if mode == "fixed":
            result[k] += keep
        elif len(rewards) > 1:
            result[k] += keep * (len(kept) / len(rewards)) / len(kept)
        if k > 0 and subgoals[k] and subgoals[k - 1] and subgoals[k] != subgoals[k - 1]:
            result[k] += consistency
    return [r - (0.0 if ok else invalid) for r, ok in zip(result, valid, strict=True)]
