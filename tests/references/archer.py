"""ArCHer (A21): double critics per utterance, a policy gradient per token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .forms import mean


def q_targets(reward: float, done: bool, next_values: tuple[float, float], gamma: float = 0.9) -> tuple[float, float]:
    """For Q_1 and Q_2: r + (1 - done) gamma V_target,i(o')."""
    return tuple(reward + (0.0 if done else gamma * v) for v in next_values)  # type: ignore[return-value]


def v_targets(target_q: tuple[float, float]) -> tuple[float, float]:
    """For V_1 and V_2: Q_target,i(o, a), a drawn afresh from the policy."""
    return target_q


def critic_loss(q: Sequence[float], v: Sequence[float], q_target: Sequence[float], v_target: Sequence[float]) -> float:
    """Of one transition: the sum of the four squared errors (the batch loss is the mean of each over transitions, then their sum)."""
    return math.fsum((x - y) ** 2 for x, y in zip([*q, *v], [*q_target, *v_target], strict=True))


def advantage(q: tuple[float, float], v: tuple[float, float]) -> float:
    """min_i Q_i(o, a) - min_i V_i(o)."""
    return min(q) - min(v)


def actor_loss(
    logprobs: Sequence[Sequence[float]], advantages: Sequence[float], baselines: Sequence[Sequence[float]] | None = None
) -> float:
    """-mean over utterances of sum_t logp_t (A - b_t); b_t = 0 without baselines. The derivative for a token is -(A - b_t)/utterances."""
    rows = []
    for i, row in enumerate(logprobs):
        b = baselines[i] if baselines is not None else [0.0] * len(row)
        rows.append(math.fsum(x * (advantages[i] - y) for x, y in zip(row, b, strict=True)))
    return -mean(rows)


def soft_update(target: float, current: float, tau: float = 0.1) -> float:
    """One weight of the target critic: (1 - tau) target + tau current."""
    return (1 - tau) * target + tau * current
