"""Pooled one-step advantages: reference written from the definition alone."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any


def pooled_td(rows: list[Any], gamma: float, prior: float, norm: str, invalid_penalty: float) -> list[float]:
    """One advantage per row, in order; rows are sorted by trajectory and t, and an attempt (trajectory) lies in one group.

    r' is the reward, less invalid_penalty if the turn is invalid. G_t = r'_t + gamma * G_{t+1}, 0 after the last turn.
    Within a group, m_j(s) is the mean of G over the turns of attempt j that act in state s, N(s) the number of attempts
    that visit s, V(s) the mean of m_j(s) over them. mu_i is the mean, over the other attempts, of G at their first turn.
    target = r'_t + gamma * V(next state of the attempt), V = 0 after the last turn.
    baseline = (sum of m_j(s_t) over all attempts that visit s_t + prior * mu_i) / (N(s_t) + prior).
    A = target - baseline; 0 for an attempt alone in its group, and 0 where |A| <= 1e-9 * (|target| + |baseline|).
    norm "std" divides every A by sqrt(mean of A^2 over the batch) + 1e-6; norm "none" leaves them.
    """
    if norm not in ("std", "none"):
        raise ValueError(f"unknown norm: {norm!r}")
    paid: list[float] = [row.reward if row.valid else row.reward - invalid_penalty for row in rows]
    turns: dict[Hashable, list[int]] = {}  # attempt -> its row numbers, in order of t
    attempts: dict[Hashable, list[Hashable]] = {}  # group -> its attempts
    for k, row in enumerate(rows):
        if row.trajectory not in turns:
            turns[row.trajectory] = []
            attempts.setdefault(row.group, []).append(row.trajectory)
        turns[row.trajectory].append(k)
    returns: list[float] = [0.0] * len(rows)
    for own in turns.values():
        ahead = 0.0
        for k in reversed(own):
            ahead = paid[k] + gamma * ahead
            returns[k] = ahead
    out: list[float] = [0.0] * len(rows)
    for members in attempts.values():
        if len(members) < 2:
            continue
        visits: dict[Hashable, list[float]] = {}  # state -> m_j(state), one entry per attempt that visits it
        for attempt in members:
            seen: dict[Hashable, list[float]] = {}
            for k in turns[attempt]:
                seen.setdefault(rows[k].anchor, []).append(returns[k])
            for state, values in seen.items():
                visits.setdefault(state, []).append(sum(values) / len(values))
        for attempt in members:
            others = [returns[turns[other][0]] for other in members if other != attempt]
            mu = sum(others) / len(others)
            own = turns[attempt]
            for n, k in enumerate(own):
                target = paid[k]
                if n + 1 < len(own):
                    following = visits[rows[own[n + 1]].anchor]
                    target += gamma * sum(following) / len(following)
                here = visits[rows[k].anchor]
                baseline = (sum(here) + prior * mu) / (len(here) + prior)
                gap = target - baseline
                out[k] = 0.0 if abs(gap) <= 1e-9 * (abs(target) + abs(baseline)) else gap
    if norm == "std" and out:
        scale = math.sqrt(sum(a * a for a in out) / len(out)) + 1e-6
        out = [a / scale for a in out]
    return out
