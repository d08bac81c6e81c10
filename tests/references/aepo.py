"""AEPO (A2): balanced branching, and high-entropy tokens that weigh more and keep a gradient above the clip."""

from __future__ import annotations

from .forms import Rows, clip, ratio, scores


def branches(draw: float, rise: float, taken: int, weight: float = 0.2, threshold: float = 0.5, penalty: float = 0.05) -> bool:
    """Whether to branch: clip((draw + weight * rise) * max(0, 1 - penalty * taken), 0, 1) >= threshold.

    taken: rounds in a row in which this group has branched; branching.py says how the authors count them.
    """
    return clip((draw + weight * rise) * max(0.0, 1.0 - penalty * taken), 0.0, 1.0) >= threshold


def weighted(advantages: Rows, entropies: Rows, alpha: float = 0.2) -> Rows:
    """A_t (1 + alpha z_t), z_t = (H_t - mean H)/std1 H over all tokens given, a constant. Equal entropies or one token: z = 0."""
    z = iter(scores([h for row in entropies for h in row], eps=0.0))
    return [[x * (1 + alpha * next(z)) for x in row] for row in advantages]


def losses(
    logprobs: Rows, old: Rows, advantages: Rows, eps_low: float = 0.2, eps_high: float = 0.28, dual: float | None = 3.0
) -> tuple[Rows, Rows]:
    """(loss, gradient) per token: max(-A rho, -A clip(rho, 1 - eps_low, (1 + eps_high)/sg(rho) * rho)), dual clip kept.

    The value is that of the ordinary clip. Above the upper bound with A > 0 the gradient is -(1 + eps_high) A instead of 0; below the
    lower bound with A < 0, and beyond the dual bound, it is 0. The scripts' eps are 3e-3 and 4e-3 with sequence ratios.
    """
    loss: Rows = [[] for _ in logprobs]
    grad: Rows = [[] for _ in logprobs]
    for i in range(len(logprobs)):
        for t in range(len(logprobs[i])):
            a, rho = advantages[i][t], ratio(logprobs[i][t], old[i][t])
            value, slope = _one(a, rho, 1 - eps_low, 1 + eps_high, dual)
            loss[i].append(value)
            grad[i].append(slope)
    return loss, grad


def _one(a: float, rho: float, low: float, high: float, dual: float | None) -> tuple[float, float]:
    value = slope = -a * rho
    if rho > high and a > 0:
        value = slope = -a * high
    elif rho < low and a < 0:
        value, slope = -a * low, 0.0
    if dual is not None and a < 0 and value > -a * dual:
        value, slope = -a * dual, 0.0
    return value, slope
