"""Pooled one-step advantages: reference written from the definition alone."""

from __future__ import annotations

import math
from collections.abc import Hashable
from itertools import pairwise
from typing import Any


def estimate_rho(entered: list[dict[Hashable, list[float]]], prior: float) -> float:
    """One rho for the whole batch, by one-way random-effects analysis of variance, nested by state.

    One item of entered per state u of a group (groups of one attempt too) that some way enters: way into u -> its samples.
    A sample x(a, w), for each attempt a that took way w at least once, is the mean, over the times a took w, of the G of
    the turn after it. c_w is the number of samples of w, m_w their mean; c_u is the sum of c_w over the ways that enter u,
    m_u the mean of all samples of those ways.
    within = sum over samples of (x - m_w)^2, d_within = number of samples - number of ways.
    between_sum = sum over ways of c_w * (m_w - m_u)^2, d_between = number of ways - number of entered states.
    c = sum over entered states of (c_u - (sum over its ways of c_w^2) / c_u).
    rho = prior if d_within = 0 or c = 0. Otherwise s2 = within / d_within, t2 = (between_sum - d_between * s2) / c,
    rho = s2 / t2 if t2 > 0, else infinite.
    """
    within = between_sum = c = 0.0
    d_within = d_between = 0
    for ways in entered:
        everything = [x for own in ways.values() for x in own]
        m_u = sum(everything) / len(everything)
        squares = 0
        for own in ways.values():
            m_w = sum(own) / len(own)
            for x in own:
                within += (x - m_w) ** 2
            between_sum += len(own) * (m_w - m_u) ** 2
            squares += len(own) ** 2
        d_within += len(everything) - len(ways)
        d_between += len(ways) - 1
        c += len(everything) - squares / len(everything)
    if d_within == 0 or c == 0.0:
        return prior
    s2 = within / d_within
    t2 = (between_sum - d_between * s2) / c
    return s2 / t2 if t2 > 0.0 else math.inf


def pooled_td(rows: list[Any], gamma: float, prior: float, norm: str, invalid_penalty: float) -> list[float]:
    """One advantage per row, in order; rows are sorted by trajectory and t; an attempt (trajectory) lies in one group.

    r' is the reward, less invalid_penalty if the turn is invalid. G_t = r'_t + gamma * G_{t+1}, 0 after the last turn.
    Within a group, N(s) is the number of turns (of any attempt, every visit counted) that act in state s, S(s) the sum
    of G over them, V(s) = S(s) / N(s). A way is an ordered pair of states (s, u) of a group such that some turn of the
    group acts in s and the next turn of the same attempt acts in u: n(s, u) is the number of such turns, F(s, u) the sum
    over them of the G of that next turn (the return from u on).
    W(s, u) = V(u) + (F(s, u) / n(s, u) - V(u)) * n(s, u) / (n(s, u) + rho), rho one number for the whole batch (see
    estimate_rho), maybe 0, maybe infinite (then W(s, u) = V(u)).
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
    samples: dict[Hashable, dict[Hashable, list[float]]] = {}  # (group, entered state) -> state before it -> its samples
    for group, members in attempts.items():
        for attempt in members:
            own = turns[attempt]
            took: dict[tuple[Hashable, Hashable], list[float]] = {}  # way -> G after each time this attempt took it
            for k, after in pairwise(own):
                took.setdefault((rows[k].anchor, rows[after].anchor), []).append(returns[after])
            for (before, entered), later in took.items():
                samples.setdefault((group, entered), {}).setdefault(before, []).append(sum(later) / len(later))
    rho = estimate_rho(list(samples.values()), prior)
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
                    weight = len(taken) / (len(taken) + rho)
                    target += gamma * (value + (sum(taken) / len(taken) - value) * weight)
                here = visits[rows[k].anchor]
                baseline = (sum(here) + prior * mean) / (len(here) + prior)
                gap = target - baseline
                out[k] = 0.0 if abs(gap) <= 1e-9 * (abs(target) + abs(baseline)) else gap
    if norm == "std" and out:
        scale = math.sqrt(sum(a * a for a in out) / len(out)) + 1e-6
        out = [a / scale for a in out]
    return out
