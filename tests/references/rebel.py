"""ReBel: episode advantage plus step advantages inside belief groups.

Source: Fateyetian/Rebel at 10f0d2ee, verl/trainer/ppo/rebel/core_rebel.py (compute_rebel_advantage,
compute_discounted_returns, step_norm_reward_by_belief, _norm_scores_by_uid, normalize_advantages_per_task); settings in
examples/rebel_trainer/_base_alfworld.sh.  Paper: arXiv 2605.20061.

Confirmed by executing compute_rebel_advantage (12 random batches; difference at the end of the file).

Facts of the authors' code
- A row is a turn.  R = return of the attempt from the environment alone, the same on all its turns.
- A_episode = R - mean over the ATTEMPTS of the task (each attempt once); mode mean_std_norm divides by the sample
  deviation (ddof 1) + 1e-6.  A single attempt: mean 0 and std 1, so A_episode = R (mean_norm).
  Script: mean_norm.
- Step returns of turn k (from 0) of T: environment G_env = gamma**(T-1-k) * R: THE WHOLE RETURN, discounted by the
  distance to the end, wherever the rewards fell.  (With the reward on the last turn only this is the usual discounted
  return; with earlier rewards it is not.)  Belief: G_bel = r_bel,k + gamma * G_bel,k+1, the usual one.  gamma = 0.95.
- Belief groups: (task uid, task type when task_aware_grouping, hash of the belief).  Each of G_env and G_bel is
  normalised over the turns of the belief group separately: minus the mean (mean_norm), or also divided by the sample
  deviation + 1e-6.  A group of one turn: exactly 0.
- A = A_episode + w * (A_env + A_bel); w = 0.5 as default of the function, STEP_ADV_W in the script.
- per_task_normalization (script: on): over the TOKENS of the turns of one task type in the batch (sample deviation, a
  turn weighs by its length): at least 10 turns and std >= 0.2 (script; default 0.1): (A - mean) / (std + 1e-6); at least
  10 and std below: A - mean; fewer than 10: blend b = n / 10: mean and std are b * own + (1 - b) * batch's; one turn: left
  as it is.
- compute_rebel_advantage itself takes R as (token reward sum of the attempt's LAST row) - (sum of the belief rewards of
  the attempt): it assumes that the token rewards hold environment + belief.  At this commit the rollout
  (agent_system/multi_turn_rollout/rollout_loop.py, gather_rollout_data) hands over environment rewards ALONE, so the
  program as published subtracts the belief rewards once too often.  Reference here: R is the environment's return.
- The order of turns is the order of rows; the trainer calls _balance_batch before, which may disturb it.
"""

from __future__ import annotations

import numpy as np


def consistency(state: float, task: float, prediction: float, form: float) -> float:
    """r_cons = 0.40 r_state + 0.30 r_task + 0.20 r_pred + 0.10 r_format."""
    return 0.40 * state + 0.30 * task + 0.20 * prediction + 0.10 * form


def _normalise(value, members, std, alone):
    if len(members) == 1:
        return alone
    centred = value - sum(members) / len(members)
    return centred / (np.std(members, ddof=1) + 1e-6) if std else centred


def step_returns(returns, belief_rewards, trajectory, gamma=0.95):
    """(G_env, G_belief) per turn.  returns: the attempt's environment return, on every turn; turns in time order."""
    n = len(trajectory)
    env, belief = np.zeros(n), np.zeros(n)
    for attempt in set(trajectory):
        rows = [row for row in range(n) if trajectory[row] == attempt]
        carry = 0.0
        for distance, row in enumerate(reversed(rows)):
            env[row] = gamma**distance * returns[row]
            carry = belief_rewards[row] + gamma * carry
            belief[row] = carry
    return env, belief


def advantages(returns, belief_rewards, group, trajectory, belief_group, gamma=0.95, step_weight=0.5, std=False):
    """One advantage per turn.  belief_group: id per turn; turns compare only inside the same group AND belief_group."""
    n = len(group)
    env, belief = step_returns(returns, belief_rewards, trajectory, gamma)
    out = np.zeros(n)
    for row in range(n):
        attempts = {}
        for other in range(n):
            if group[other] == group[row]:
                attempts.setdefault(trajectory[other], returns[other])
        alone = returns[row] / (1 + 1e-6) if std else returns[row]
        episode = _normalise(returns[row], list(attempts.values()), std, alone)
        same = [other for other in range(n) if (group[other], belief_group[other]) == (group[row], belief_group[row])]
        step = sum(_normalise(part[row], [part[other] for other in same], std, 0.0) for part in (env, belief))
        out[row] = episode + step_weight * step
    return out


def per_task(values, task_type, tokens, min_samples=10, min_std=0.2):
    """The script's normalisation per task type.  values: one advantage per turn; tokens: response length per turn."""
    out = np.array(values, dtype=np.float64)
    everything = np.repeat(values, tokens)
    for kind in set(task_type):
        rows = [row for row in range(len(values)) if task_type[row] == kind]
        if len(rows) <= 1:
            continue
        own = np.repeat([values[row] for row in rows], [tokens[row] for row in rows])
        mean, deviation = own.mean(), own.std(ddof=1)
        for row in rows:
            if len(rows) < min_samples:
                if everything.std(ddof=1) > 1e-6:
                    share = len(rows) / min_samples
                    blended = share * mean + (1 - share) * everything.mean()
                    scale = share * deviation + (1 - share) * everything.std(ddof=1)
                    out[row] = (values[row] - blended) / (scale + 1e-6)
                else:
                    out[row] = values[row] - mean
            elif deviation < min_std:
                out[row] = values[row] - mean
            else:
                out[row] = (values[row] - mean) / (deviation + 1e-6)
    return out


# Confirmed: 12 random batches, float32, rewards exact in binary: 1.6e-6 (advantages up to 12), per task 5.1e-7.
