"""Pooled one-step advantages: reference written from the definition alone."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any


def pooled_td(rows: list[Any], gamma: float, prior: float, norm: str, invalid_penalty: float) -> list[float]:
    """One advantage per row, in order; rows are sorted by trajectory and t; an attempt (trajectory) lies in one group.

    r' is the reward, less invalid_penalty if the turn is invalid. G_t = r'_t + gamma * G_{t+1}, 0 after the last turn.
    Within a group, N(s) is the number of turns (of any attempt, every visit counted) that act in state s, S(s) the sum
    of G over them, V(s) = S(s) / N(s). For an ordered pair of states (s, u), n(s, u) is the number of turns of the group
    that act in s and whose next turn in the same attempt acts in u, F(s, u) the sum over those turns of the G of that
    next turn (the return from u on), W(s, u) = (F(s, u) + prior * V(u)) / (n(s, u) + prior).
    M is the mean of G over all turns of the group's attempts, own attempt included.
    target = r'_t + gamma * W(s_t, s_{t+1}), W = 0 after the last turn of an attempt.
    baseline = (S(s_t) + prior * M) / (N(s_t) + prior).
    A = target - baseline; 0 for an attempt alone in its group, and 0 where |A| <= 1e-9 * (|target| + |baseline|).
    norm "std" divides every A by sqrt(mean of A^2 over the whole batch) + 1e-6; norm "none" leaves them; another norm
    is a ValueError.
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
        visits: dict[Hashable, list[float]] = {}  # state -> G of every turn of the group that acts in it
        steps: dict[tuple[Hashable, Hashable], list[float]] = {}  # (state, next state) -> G of every such next turn
        for attempt in members:
            own = turns[attempt]
            for n, k in enumerate(own):
                visits.setdefault(rows[k].anchor, []).append(returns[k])
                if n + 1 < len(own):
                    after = own[n + 1]
                    steps.setdefault((rows[k].anchor, rows[after].anchor), []).append(returns[after])
        pooled = [returns[k] for attempt in members for k in turns[attempt]]
        mean = sum(pooled) / len(pooled)
        for attempt in members:
            own = turns[attempt]
            for n, k in enumerate(own):
                target = paid[k]
                if n + 1 < len(own):
                    there = rows[own[n + 1]].anchor
                    value = sum(visits[there]) / len(visits[there])
                    taken = steps[(rows[k].anchor, there)]
                    target += gamma * (sum(taken) + prior * value) / (len(taken) + prior)
                here = visits[rows[k].anchor]
                baseline = (sum(here) + prior * mean) / (len(here) + prior)
                gap = target - baseline
                out[k] = 0.0 if abs(gap) <= 1e-9 * (abs(target) + abs(baseline)) else gap
    if norm == "std" and out:
        scale = math.sqrt(sum(a * a for a in out) / len(out)) + 1e-6
        out = [a / scale for a in out]
    return out
