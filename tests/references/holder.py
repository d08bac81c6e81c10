"""HolderPO (B11): one ratio per row, the power mean of its token ratios; the power p follows a schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .forms import Rows, clip, mean


def power_mean(log_ratios: Sequence[float], p: float) -> float:
    """((1/T) sum rho^p)^(1/p); |p| < 1e-6: exp(mean log rho). Log-ratios held in [-20, 20]."""
    xs = [clip(x, -20.0, 20.0) for x in log_ratios]
    if abs(p) < 1e-6:
        return math.exp(mean(xs))
    top = max(p * x for x in xs)
    return math.exp((top + math.log(math.fsum(math.exp(p * x - top) for x in xs) / len(xs))) / p)


def shares(log_ratios: Sequence[float], p: float) -> list[float]:
    """d log s / d logp_t = rho_t^p / sum rho^p; sums to 1; 1/T for p = 0. A log-ratio beyond [-20, 20] has share 0."""
    xs = [clip(x, -20.0, 20.0) for x in log_ratios]
    top = max(p * x for x in xs)
    weights = [math.exp(p * x - top) if abs(p) >= 1e-6 else 1.0 for x in xs]
    whole = math.fsum(weights)
    return [w / whole if abs(x) <= 20.0 else 0.0 for w, x in zip(weights, log_ratios, strict=True)]


def sequence_losses(
    logprobs: Rows, old: Rows, advantages: Sequence[float], p: float, eps_low: float = 0.2, eps_high: float = 0.2
) -> tuple[list[float], Rows]:
    """(loss per row, gradient of that row's loss per token): max(-A s, -A clip(s, 1 - eps_low, 1 + eps_high)), s the power mean of the row.

    One advantage per row. The batch loss is the mean over rows. This is the paper's form (clip after the mean).
    """
    loss: list[float] = []
    grad: Rows = []
    for row, before, a in zip(logprobs, old, advantages, strict=True):
        xs = [x - y for x, y in zip(row, before, strict=True)]
        s = power_mean(xs, p)
        held = -a * clip(s, 1 - eps_low, 1 + eps_high)
        if held > -a * s:
            loss.append(held)
            grad.append([0.0 for _ in xs])
        else:
            loss.append(-a * s)
            grad.append([-a * s * share for share in shares(xs, p)])
    return loss, grad
