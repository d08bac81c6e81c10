"""T-STAR (B3): equal steps of a group's rollouts are merged into a tree; values are backed up on it.

Neither the paper's text nor code of the authors could be had: this is written from notes on the paper. A second reading of the same
notes, by somebody who did not know the implementation, gave the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from references.forms import clip, deviation, mean, sigmoid


def values(nodes: Sequence[Sequence[int]], returns: Sequence[float], how: str = "rollouts") -> dict[int, float]:
    """Q per node of ONE group. nodes[i][k]: the node of step k of rollout i (any merge relation); returns[i]: the leaf's value.

    rollouts: the mean return of all rollouts through the node (each once). children: the mean over its distinct next nodes, and over one
    leaf per rollout that ends there. The source says "children/rollouts"; a node shared by d rollouts has 1/d the variance only with
    rollouts.
    """
    every = {n for row in nodes for n in row}
    if how == "rollouts":
        return {n: mean([r for row, r in zip(nodes, returns, strict=True) if n in row]) for n in every}
    following: dict[int, list[tuple[str, int]]] = {n: [] for n in every}
    for i, row in enumerate(nodes):
        for k, n in enumerate(row):
            child = ("node", row[k + 1]) if k + 1 < len(row) else ("leaf", i)
            if child not in following[n]:
                following[n].append(child)

    def value(kind: str, n: int) -> float:
        return returns[n] if kind == "leaf" else mean([value(*child) for child in following[n]])

    return {n: value("node", n) for n in every}


def advantages(nodes: Sequence[Sequence[int]], returns: Sequence[float], how: str = "rollouts", eps: float = 1e-6) -> list[list[float]]:
    """(Q(node) - mean R)/(std1 R + eps) per rollout and step of one group; equal returns: exactly 0."""
    if len(returns) < 2 or max(returns) == min(returns):
        return [[0.0 for _ in row] for row in nodes]
    q, m, s = values(nodes, returns, how), mean(returns), deviation(returns, 1)
    return [[(q[n] - m) / (s + eps) for n in row] for row in nodes]


def preference_loss(good: float, bad: float, beta: float = 0.1) -> tuple[float, float]:
    """(-log sigm(x), derivative with respect to `good`), x = beta (good - bad), both sums of log-ratios of one step; for `bad` the
    negative.

    beta is not published; 0.1 is ours.
    """
    x = clip(beta * (good - bad), -700.0, 700.0)
    loss = math.log1p(math.exp(-x)) if x >= 0 else -x + math.log1p(math.exp(x))
    return loss, -beta * sigmoid(-x)
