"""The estimators of verl and of frameworks that follow it: RLOO, Dr. GRPO, REINFORCE++ and REINFORCE++-baseline.

Sources
- volcengine/verl at b178a3cd, verl/trainer/ppo/core_algos.py: compute_rloo_outcome_advantage, compute_grpo_outcome_advantage
  (norm_adv_by_std_in_grpo False), compute_reinforce_plus_plus_outcome_advantage,
  compute_reinforce_plus_plus_baseline_outcome_advantage; verl/utils/torch_functional.py masked_whiten.
- sail-sg/understand-r1-zero at dfca49dd, train_zero_math.py compute_monte_carlo_advantages (Dr. GRPO's authors).
- OpenRLHF/OpenRLHF at 3c3be623, openrlhf/trainer/ppo_utils/experience_maker.py (REINFORCE++'s authors).
Confirmed by executing verl's functions and those of Dr. GRPO's authors on 12 random batches: largest difference 4e-7
(float32).  OpenRLHF's lines stand inside a method; get_cumulative_returns was executed, the normalisation was read.

What the code does
- A row has one score; in verl a row is a whole response, in verl-agent a turn with the score of its attempt, and then n in
  RLOO and the mean in the others are over the group's TURNS.
- RLOO: n / (n - 1) * (R - mean), which is R less the mean of the others.  Group of one: R itself (OpenRLHF divides by 0).
- Dr. GRPO: R - mean.  Group of one: verl R itself (mean 0), its authors 0.  Its loss sums over tokens and divides by the
  longest length allowed, a constant, then takes the mean over rows.
- REINFORCE++-baseline: R - mean (group of one: R in verl, 0 in OpenRLHF), the same on all tokens, whitened over the tokens of
  the batch.
- REINFORCE++: return over tokens, G_t = r_t + gamma * G_{t+1}, whitened over the batch.  verl sets the carry to 0 at every
  masked token, so in a row with several turns nothing crosses an observation; OpenRLHF masks the rewards and goes on, so the
  return crosses, discounted by gamma for masked tokens too.
- Whitening: (x - mean) / sqrt(var + 1e-8), over tokens with mask 1, so a row weighs by its length.  verl: unbiased variance,
  one token is an error.  OpenRLHF: population variance, at least 1e-8.
"""

import math

import numpy as np


def whiten(values, mask, unbiased=True):
    """values and mask: arrays [rows, tokens].  0 where the mask is 0."""
    values, mask = np.asarray(values, dtype=np.float64), np.asarray(mask) != 0
    chosen = values[mask]
    variance = chosen.var(ddof=1) + 1e-8 if unbiased else max(chosen.var(), 1e-8)
    return np.where(mask, (values - chosen.mean()) / math.sqrt(variance), 0.0)


def group_mean(score, group, alone):
    """R - mean of the group; alone: what a group of one gets, "score" (verl) or 0."""
    out = np.zeros(len(score))
    for row in range(len(score)):
        members = [float(score[other]) for other in range(len(score)) if group[other] == group[row]]
        if len(members) == 1:
            out[row] = score[row] if alone == "score" else alone
        else:
            out[row] = score[row] - sum(members) / len(members)
    return out


def rloo(score, group, alone="score"):
    """R less the mean of the others of its group."""
    out = np.zeros(len(score))
    for row in range(len(score)):
        others = [float(score[other]) for other in range(len(score)) if group[other] == group[row] and other != row]
        if others:
            out[row] = score[row] - sum(others) / len(others)
        else:
            out[row] = score[row] if alone == "score" else alone
    return out


def reinforce_pp(rewards, mask, gamma, crosses=False, unbiased=True):
    """Advantage per token, arrays [rows, tokens].  crosses: False verl, True OpenRLHF."""
    rewards = np.asarray(rewards, dtype=np.float64)
    returns = np.zeros_like(rewards)
    for row in range(len(rewards)):
        carry = 0.0
        for token in reversed(range(rewards.shape[1])):
            reward = rewards[row, token] * (mask[row][token] if crosses else 1)
            carry = reward + gamma * carry
            returns[row, token] = carry
            if not crosses and not mask[row][token]:
                carry = 0.0
    return whiten(returns, mask, unbiased)


def reinforce_pp_baseline(score, group, mask, alone="score", unbiased=True):
    """Advantage per token."""
    centred = group_mean(score, group, alone)
    return whiten(np.repeat(centred[:, None], np.asarray(mask).shape[1], axis=1), mask, unbiased)


def dr_grpo_loss(token_loss, mask, constant):
    """Mean over rows of the sum over tokens / constant."""
    return sum(sum(x * m for x, m in zip(row, keep, strict=True)) for row, keep in zip(token_loss, mask, strict=True)) / (
        constant * len(token_loss)
    )
