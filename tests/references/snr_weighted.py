"""Soft weights by the deviation of a group's returns (`soft_advantage_reweight` of RAGEN).

Source: mll-lab-nu/RAGEN at 20daedc4, ragen/trainer/core_algos.py compute_grpo_outcome_advantage (return_group_std) and the block "soft
advantage reweighting" of ragen/trainer/agent_trainer.py. Confirmed by executing the function and the block's lines on 12 random batches:
largest difference 2e-7 (float32).

- A = GRPO over the attempts of the group (one score per attempt when rows are turns): (R - mean) / (sample std + 1e-6).
- Weight of a group: std / (largest std of the batch + 1e-6); A *= weight. So with std the product is (R - mean) / (largest std), up to the
  epsilons: one divisor for all groups.
- Group of one: mean 0 and std 1: A = R / (1 + 1e-6), and 1 is its std in the weights, also as the largest. `alone` = 1 is the code.
- All groups constant: all weights 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from .forms import deviation


def weights(returns: Sequence[Sequence[float]], alone: float = 1.0) -> list[float]:
    """Weight of each group; returns[g] are those of its attempts."""
    spread = [deviation(group) if len(group) > 1 else alone for group in returns]
    return [value / (max(spread) + 1e-6) for value in spread]
