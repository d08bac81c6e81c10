"""The estimators of verl and of frameworks that follow it: RLOO, Dr. GRPO, REINFORCE++ and REINFORCE++-baseline.

Sources
- volcengine/verl at b178a3cd, verl/trainer/ppo/core_algos.py: compute_rloo_outcome_advantage, compute_grpo_outcome_advantage
  (norm_adv_by_std_in_grpo False), compute_reinforce_plus_plus_outcome_advantage, compute_reinforce_plus_plus_baseline_outcome_advantage;
  verl/utils/torch_functional.py masked_whiten.
- sail-sg/understand-r1-zero at dfca49dd, train_zero_math.py compute_monte_carlo_advantages (Dr. GRPO's authors).
- OpenRLHF/OpenRLHF at 3c3be623, openrlhf/trainer/ppo_utils/experience_maker.py (REINFORCE++'s authors).
Confirmed by executing verl's functions, Dr. GRPO's and OpenRLHF's get_cumulative_returns on 12 random batches: largest difference 4e-7
(float32). OpenRLHF's normalisation stands inside a method; it was read.

- A row has one score; in verl a row is a whole response, in verl-agent a turn with the score of its attempt, and then n in RLOO and the
  mean in the others are over the group's TURNS.
- RLOO: n / (n - 1) * (R - mean), which is R less the mean of the others. Group of one: R itself (OpenRLHF divides by 0).
- Dr. GRPO: R - mean. Group of one: verl R itself (its mean is taken as 0), its authors 0. Its loss sums over tokens and divides by the
  longest length allowed, a constant, then takes the mean over rows.
- REINFORCE++-baseline: R - mean (group of one: R in verl, 0 in OpenRLHF), the same on all tokens, whitened over the tokens of the batch.
- REINFORCE++: return over tokens, G_t = r_t + gamma * G_{t+1}, whitened over the tokens of the batch. verl sets the carry to 0 at every
  masked token, so in a row with several turns nothing crosses an observation; OpenRLHF goes on, discounting for masked tokens too.
- Whitening: (x - mean) / sqrt(var + 1e-8) over tokens with mask 1, so a row weighs by its length. verl: unbiased variance, one token is
  an error. OpenRLHF: population variance, at least 1e-8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .forms import mean


def whitened_over_tokens(score: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """Rows with one value for all their tokens, whitened over tokens."""
    flat = [value for value, n in zip(score, tokens, strict=True) for _ in range(n)]
    m = mean(flat)
    variance = math.fsum((x - m) ** 2 for x in flat) / (len(flat) - 1)
    return [(value - m) / math.sqrt(variance + 1e-8) for value in score]
