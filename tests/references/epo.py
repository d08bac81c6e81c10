"""EPO (A5): an entropy bonus, and a penalty on entropies that leave a band around their own history."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .forms import Rows, mean, token_mean


def turn_means(entropies: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """Of one iteration: mean entropy per turn index, over the tokens of all trajectories that have that turn. entropies[i][k][t]."""
    longest = max((len(t) for t in entropies), default=0)
    return [mean([h for t in entropies if k < len(t) for h in t[k]]) for k in range(longest)]


def history(iterations: Sequence[Sequence[float]], max_turns: int, align: str = "left") -> list[float]:
    """Hbar[k], k < max_turns: mean over all iterations so far (the current one included) of the turn means.

    align "left" (the code): each list is padded with zeros on the LEFT to max_turns, or its last max_turns are kept. align "turn" (ours):
    turn k is compared with turn k; the mean goes over the iterations that have it, 0 where none has.
    """
    if align == "turn":
        columns = [[row[k] for row in iterations if k < len(row)] for k in range(max_turns)]
        return [mean(c) if c else 0.0 for c in columns]
    padded = [([0.0] * max_turns + list(row))[-max_turns:] for row in iterations]
    return [mean([row[k] for row in padded]) for k in range(max_turns)]


def penalties(
    entropies: Rows,
    turns: Sequence[int],
    past: Sequence[float],
    low: float = 0.0,
    high: float = 2.0,
    alpha: float = 0.1,
    mode: str = "token",
) -> Rows:
    """P_t per token: 0 if low * Hbar < H_t < high * Hbar (strict), else alpha. Rows are turns; turns[i] is the turn index of row i.

    mode "seq": the row's mean entropy is compared, all its tokens get the same. alpha 0.1 (ALFWorld) or 0.05 (ScienceWorld); the band
    0 to 2.0 is that of the published commands (code default 0.8 to 1.2).
    """
    result = []
    for row, k in zip(entropies, turns, strict=True):
        seen = [mean(row)] * len(row) if mode == "seq" and row else row
        result.append([0.0 if low * past[k] < h < high * past[k] else alpha for h in seen])
    return result


def hinges(
    entropies: Rows, turns: Sequence[int], past: Sequence[float], low: float = 0.0, high: float = 2.0, alpha: float = 0.1
) -> tuple[Rows, Rows]:
    """A differentiable form (ours): alpha * distance of H_t from the band, and its derivative with respect to H_t (0 on the edges)."""
    value: Rows = []
    slope: Rows = []
    for row, k in zip(entropies, turns, strict=True):
        bottom, top = low * past[k], high * past[k]
        value.append([alpha * (max(0.0, bottom - h) + max(0.0, h - top)) for h in row])
        slope.append([alpha * ((h > top) - (h < bottom)) for h in row])
    return value, slope


def weight(epoch: int, epochs: int = 150) -> float:
    """w(e): 1 - 0.2 (1 - exp(-2x)), x = e/half up to e = half = epochs // 2; then 0.8 exp(-3x), x = (e - half)/(epochs - half)."""
    e, half = max(0, min(epoch, epochs)), epochs // 2
    if e <= half:
        return 1.0 - 0.2 * (1.0 - math.exp(-2.0 * e / half)) if half else 1.0
    return 0.8 * math.exp(-3.0 * (e - half) / (epochs - half))


def active(turns: Sequence[int], max_turns: int) -> bool:
    """Whether the penalty applies to this (micro-)batch: some row has turn index >= max_turns // 2."""
    return any(k >= max_turns // 2 for k in turns)


def term(entropies: Rows, penalty: Rows, lam: float = 0.001, beta: float = 1.0, w: float = 1.0) -> float:
    """What is added to the loss: -lam (mean H - beta w mean P), means over all tokens."""
    return -lam * (token_mean(entropies) - beta * w * token_mean(penalty))


def slope(tokens: int, lam: float = 0.001) -> float:
    """Derivative of the term with respect to each H_t when P is the constant indicator: -lam / tokens."""
    return -lam / tokens
