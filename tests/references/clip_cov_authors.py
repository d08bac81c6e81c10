"""Clip-Cov from the authors' code.

Source: PRIME-RL/Entropy-Mechanism-of-RL, commit 88505792fd97a11993445e93195145e3c1181955, `verl/trainer/ppo/core_algos.py:compute_policy_loss_clip_cov`
(the same rule is in verl-project/verl, commit 1dda039b9c6311889a9c9a26040677e1254814f9, which also bounds the log-ratio by ±20).
Confirmed by executing the authors' function (tests/golden/clip_cov.json; float64, largest difference 2e-15).

Corner cases: tokens that the ratio's bound decides are not eligible; the number of tokens that lose their loss is floor(fraction · tokens), at least 1,
at most the eligible ones; none are eligible: nothing happens. A token without loss stays in the denominator of the mean.
"""

import numpy as np


def eligible(old, new, advantages, mask, low, high, cov_low, cov_high):
    old, new, advantages = (np.asarray(values, np.float64) for values in (old, new, advantages))
    mask = np.asarray(mask) > 0
    ratio = np.exp(new - old)
    clipped = -advantages * np.clip(ratio, 1 - low, 1 + high) > -advantages * ratio
    covariance = (advantages - advantages[mask].mean()) * (new - new[mask].mean())
    return mask & ~clipped & (covariance > cov_low) & (covariance < cov_high)


def chosen_number(fraction, tokens, candidates):
    return min(max(int(fraction * tokens), 1), candidates)


def loss(old, new, advantages, mask, without, low=1.0, high=1.0):
    """Mean over all tokens. without: the tokens that lose their loss (a boolean array)."""
    total, count = 0.0, 0
    for o, n, a, m, w in zip(*(np.ravel(values) for values in (old, new, advantages, mask, without)), strict=True):
        if m:
            ratio = np.exp(n - o)
            total += 0.0 if w else max(-a * ratio, -a * np.clip(ratio, 1 - low, 1 + high))
            count += 1
    return total / count
