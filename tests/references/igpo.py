"""IGPO: information gain as the reward of a turn.

Sources
- First version: GuoqingWang1/IGPO at bff163b7 (code of 2025-09-25), verl/trainer/ppo/core_algos.py
  compute_grpo_outcome_advantage, verl/utils/reward_score/info_gain.py compute_score.
- Rewrite of 2026-02-01: debajoycs98/IGPO (an author's development copy) at 86601963, same files, plus
  scrl/llm_agent/generation.py (the gain) and verl/trainer/ppo/ray_trainer.py (the curriculum).
- Rewrite as it stands in GuoqingWang1/IGPO at 49a8c4ec: core_algos.py, read through the index only (no snapshot of that
  commit could be had).  It differs from 86601963 in one thing: which positions end a turn (below).

Confirmed by executing compute_grpo_outcome_advantage of bff163b7 and of 86601963; 49a8c4ec by executing 86601963 with
its one difference applied.  Differences at the end of the file.

Facts of the rewrite
- A row is a whole conversation; a reward stands on the last token of each turn: the gain for every turn but the last,
  the outcome (F1, -2 for a malformed answer) for the last.  With one turn, or when the number of gains is not
  turns - 1 (a gain that is nan or infinite is skipped, so this happens), the row has the outcome alone.
- gain: value(after the turn) - value(before it), value = exp(mean log p of the answer's tokens) for prob_diff (the
  default of the code) or mean log p for log_prob_diff (train.sh).
- A GAIN OF EXACTLY 0: the estimator takes only positions with reward != 0 as gains, so a zero would be in no statistic,
  would end no turn, and its tokens would get the advantage of the following turn.  BUT the reward function of the
  rewrite (info_gain.py) writes 1e-10 in place of a gain of 0.0, with the remark that it must not be skipped: in the
  whole program a zero gain IS a value (1e-10, in float32 not 0), counts in mean and deviation, and ends its turn.
  `zero="skip"` is the estimator alone, `zero="keep"` the whole program.
- The outcome always counts, also when it is 0.
- Weights: outcome * w_outcome and gain * w_gain, applied BEFORE the statistics (so a common factor cancels in "separate"
  with std up to the epsilons, and only the mix of "joint" changes).  Which positions count is decided before weighting.
- Statistics per group, over all gains of all its rows and all outcomes together ("joint", the code's default) or each
  apart ("separate", train.sh).  Population variance; std = sqrt(var + 1e-8); with one value or none std = 1 (then the
  single value gives 0).  z = (r - mean) / (std + 1e-6), or r - mean without norm_adv_by_std_in_grpo.
- A_k = z_k + gamma * A_{k+1} over the turns of the row that have a reward (gamma 1.0 in train.sh); on every token from
  the end of the previous such turn to its own end, where the mask is 1.
- Ends of turns: 49a8c4ec: all positions that count (outcome and gains).  86601963: positions whose z is not exactly 0,
  so a turn with z == 0 joins the following one, and tokens after the last z != 0 get 0.
- The mask passed in is the attention mask of the response (multi_turn.enable is off), so observations count as tokens
  here; the loss masks them later.  The outcome stands at position mask.sum() - 1.
- Curriculum (off in train.sh): progress = min(step / (epochs * batches per epoch), 1), step counted from 1;
  w_outcome = 0.5 + 0.5 * progress, w_gain = 1.0 - 0.5 * progress.
- train.sh: 16 attempts, 10 turns, lr 1e-6, KL loss 0.001, clip 0.2, token mean (verl's default).

First version: gain of prob_diff only; returns over TOKENS, G_t = r_t + G_{t+1} * mask_{t+1} (gamma is 1 in the code),
baseline = mean over the group of G at the same token index, no deviation (it is computed and not used), times the mask.
Group of one: baseline = itself, so 0.  Padded tokens count in the baseline with G = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .forms import by_group, discounted


def curriculum(progress, outcome=(0.5, 1.0), gain=(1.0, 0.5)):
    """Weights (of the outcome, of the gain) at progress = min(step / steps, 1)."""
    progress = min(progress, 1.0)
    return outcome[0] + (outcome[1] - outcome[0]) * progress, gain[0] + (gain[1] - gain[0]) * progress


def advantages(
    turn_gains, outcomes, group, mode="joint", gamma=1.0, std=True, outcome_weight=1.0, gain_weight=1.0, zero="keep", ends="counted"
):
    """Advantage of every turn: a list per attempt.

    turn_gains: per attempt the list of gains of its turns but the last; outcomes: per attempt; group: per attempt.
    ends: "counted" (49a8c4ec) or "nonzero" (86601963, turns end where z is not 0)."""
    values, counts = [], []
    for row, outcome in zip(turn_gains, outcomes, strict=True):
        row = [1e-10 if gain == 0 and zero == "keep" else gain for gain in row]
        counts.append([gain != 0 for gain in row] + [True])
        values.append([gain * gain_weight for gain in row] + [outcome * outcome_weight])

    def statistics(attempt, last):
        members = []
        for other in range(len(values)):
            if group[other] != group[attempt]:
                continue
            for turn, value in enumerate(values[other]):
                is_last = turn == len(values[other]) - 1
                if counts[other][turn] and (mode == "joint" or is_last == last):
                    members.append(value)
        if len(members) <= 1:
            return (members[0] if members else 0.0), 1.0
        return np.mean(members), math.sqrt(np.var(members) + 1e-8)

    out = []
    for attempt, row in enumerate(values):
        z = []
        for turn, value in enumerate(row):
            mean, deviation = statistics(attempt, turn == len(row) - 1)
            z.append((value - mean) / (deviation + 1e-6) if std else value - mean)
        result, carry = [0.0] * len(row), 0.0
        for turn in reversed(range(len(row))):
            if counts[attempt][turn] and (ends == "counted" or z[turn] != 0):
                carry = z[turn] + gamma * carry
            result[turn] = carry
        out.append(result)
    return out


def turn_rewards(probabilities: Sequence[float] | None, outcome: float, turns: int, alpha: float = 1.0) -> list[float]:
    """r_k of one trajectory with K = `turns` turns: p_k - p_{k-1} for k < K, credited to the turn that brought the observation;
    the last turn gets alpha * outcome (and no gain).

    probabilities[k], k = 0..K-1, is the gold answer's probability before turn k + 1 is generated (p_0: the question only). No gold answer
    (None) or another number of probabilities than turns: the outcome alone, zeros elsewhere.
    """
    rewards = [0.0] * turns
    if probabilities is not None and len(probabilities) == turns:
        for k in range(turns - 1):
            rewards[k] = probabilities[k + 1] - probabilities[k]
    rewards[-1] = alpha * outcome
    return rewards


def normalised(
    rewards: Sequence[Sequence[float]], groups: Sequence[Any], how: str = "joint", ddof: int = 1, eps: float = 1e-6
) -> list[list[float]]:
    """Of the formula before the rewrite: z-scores of all turn rewards of a group.

    joint: gains and outcomes in one pool; separate: the last turns in a pool of their own.

    A pool of one value or of equal values gives exactly 0. std1 + eps (the source does not say which std).
    """
    keys: list[Any] = []
    for row, g in zip(rewards, groups, strict=True):
        keys += [(g, how == "separate" and k == len(row) - 1) for k in range(len(row))]
    flat = iter(by_group([r for row in rewards for r in row], keys, ddof=ddof, eps=eps))
    return [[next(flat) for _ in row] for row in rewards]


def paper_advantages(
    rewards: Sequence[Sequence[float]], groups: Sequence[Any], gamma: float = 1.0, how: str = "joint", ddof: int = 1, eps: float = 1e-6
) -> list[list[float]]:
    """The formula before the rewrite.

    A_k = sum_{j >= k} gamma^(j - k) of the normalised rewards; rewards[i] are the turns of trajectory i, groups[i] its group."""
    return [discounted(row, gamma) for row in normalised(rewards, groups, how, ddof, eps)]


# Confirmed: 12 random batches (joint and separate, zero gains, group of one, gamma 0.9 and 1, weights), float32:
# first version 3.1e-7; 86601963 4.9e-7; 49a8c4ec 4.9e-7.
