"""Clip-Cov (C12): the loss of a few tokens with large covariance of log-prob and advantage is set to zero.

Source: PRIME-RL/Entropy-Mechanism-of-RL, commit 88505792fd97a11993445e93195145e3c1181955,
`verl/trainer/ppo/core_algos.py:compute_policy_loss_clip_cov` (the same rule is in verl-project/verl, commit
1dda039b9c6311889a9c9a26040677e1254814f9, which also bounds the log-ratio by ±20). Confirmed by executing the authors' function
(tests/golden/clip_cov.json; float64, largest difference 2e-15).

Corner cases: tokens that the ratio's bound decides are not eligible; the number of tokens that lose their loss is floor(fraction ·
tokens), at least 1, at most the eligible ones; none are eligible: nothing happens. A token without loss stays in the denominator of
the mean.
"""

from __future__ import annotations

import math

from .forms import Place, Rows, clipped, mean, ratio


def covariances(logprobs: Rows, advantages: Rows) -> Rows:
    """cov_t = (A_t - mean A)(logp_t - mean logp) per token, both means over all tokens given (the mini-batch)."""
    a = mean([x for row in advantages for x in row])
    m = mean([x for row in logprobs for x in row])
    return [[(advantages[i][t] - a) * (logprobs[i][t] - m) for t in range(len(logprobs[i]))] for i in range(len(logprobs))]


def candidates(
    logprobs: Rows, old: Rows, advantages: Rows, low: float = 1.0, high: float = 5.0, eps_low: float = 1.0, eps_high: float = 1.0
) -> list[Place]:
    """Places with low < cov < high (both strict) that the ordinary clip does not already hold, in order of (row, position).

    A token is held by the ordinary clip when -A clip(rho, 1 - eps_low, 1 + eps_high) > -A rho.
    """
    cov = covariances(logprobs, advantages)
    found = []
    for i in range(len(logprobs)):
        for t in range(len(logprobs[i])):
            rho = ratio(logprobs[i][t], old[i][t])
            a = advantages[i][t]
            held = -a * min(max(rho, 1 - eps_low), 1 + eps_high) > -a * rho
            if low < cov[i][t] < high and not held:
                found.append((i, t))
    return found


def number(tokens: int, fraction: float = 2e-4) -> int:
    """How many candidates are drawn (uniformly, without replacement): max(1, floor(fraction * tokens)), or all if fewer are there."""
    return max(1, math.floor(fraction * tokens))


def losses(
    logprobs: Rows, old: Rows, advantages: Rows, chosen: set[Place], eps_low: float = 1.0, eps_high: float = 1.0
) -> tuple[Rows, Rows]:
    """(loss, gradient) per token: the clipped loss, and exactly 0 for the chosen places. Aggregation: mean over ALL tokens."""
    loss: Rows = [[] for _ in logprobs]
    grad: Rows = [[] for _ in logprobs]
    for i in range(len(logprobs)):
        for t in range(len(logprobs[i])):
            value, slope = clipped(advantages[i][t], ratio(logprobs[i][t], old[i][t]), 1 - eps_low, 1 + eps_high)
            kept = (i, t) not in chosen
            loss[i].append(value if kept else 0.0)
            grad[i].append(slope if kept else 0.0)
    return loss, grad
