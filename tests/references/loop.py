"""LOOP: leave-one-out PPO.

Source: apple/ml-loop at 6ade7b96, phi_agents/rl/train.py (_compute_adv_estimates, _filter_rollouts, _ppo_loss,
_surrogate_loss, _gradient_step, _gradient_steps), phi_agents/rl/conf/rl/params/default.yaml.  Paper: arXiv 2502.01600.

Confirmed by executing _compute_adv_estimates, _filter_rollouts (one worker) and _surrogate_loss with its gradient;
differences at the end of the file.

Facts of the authors' code
- A row is a whole attempt.  A_i = R_i - (sum of the others) / (n - 1).  A group needs n >= 2 (assert).
- adv_normalization (off in the defaults): divided by max(population std, 1e-7).
- baseline leave_none_out exists: R_i - mean.
- Filter: attempts are sorted by |A| and those with |A| >= 0.01 stay (abs_adv_threshold; "at least", not "more than").
  The number that stays is rounded UP to a multiple of the number of workers, at least one per worker: so with W workers
  up to W - 1 attempts below the threshold, the largest of them, stay; all silent: W attempts with A about 0 stay.
- pos_adv_only (off): sorts and compares A itself instead of |A|.
- Only attempts that stay are in the update: loss, gradient, the KL that stops an iteration.  There is no KL term and no
  entropy term in the loss.
- Loss of one attempt: mean over ITS tokens of -min(rho * A, clip), clip = (1 + eps) * A for A >= 0 and A / (1 + eps)
  for A < 0; eps = 0.1.  rho per token (pg_per_token).
- Denominator: the sum of attempt losses of a minibatch is divided by minibatch_size = 32, A CONSTANT, over minibatches
  cut from the attempts that stay.  So an attempt's weight does not depend on how many were dropped: what stays fills
  fewer minibatches (optimiser steps), each at full strength; the last one may be smaller and is still divided by 32.
  With strictly_on_policy there is one minibatch and the divisor is the number of attempts that stay.
- Seen as one update per batch: the gradient is the mean over attempts that stay, not over all attempts.
"""

from __future__ import annotations

import numpy as np


def advantages(returns, group, normalise=False):
    out = np.zeros(len(returns))
    for i in range(len(returns)):
        members = [returns[j] for j in range(len(returns)) if group[j] == group[i]]
        assert len(members) >= 2
        out[i] = returns[i] - (sum(members) - returns[i]) / (len(members) - 1)
        if normalise:
            out[i] /= max(np.std(members), 1e-7)
    return out


def keep(advantage, threshold=0.01, workers=1):
    """True for the attempts that stay in the update."""
    order = sorted(range(len(advantage)), key=lambda i: -abs(advantage[i]))
    count = sum(1 for value in advantage if abs(value) >= threshold)
    count = workers * min(max(1, -(-count // workers)), len(advantage) // workers)
    kept = np.zeros(len(advantage), dtype=bool)
    kept[order[:count]] = True
    return kept


# Confirmed: 12 random batches in float64: advantages equal, filter picks the same |A| (1 and 2 workers), losses 1.1e-16,
# gradients 5.6e-17.
