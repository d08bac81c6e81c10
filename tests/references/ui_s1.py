"""UI-S1 (semi-online RL for GUI agents): scores, patched episodes, step returns, the group filter and the advantages.

Source: X-PLUG/MobileAgent at 11cea575, UI-S1/uis1/core_uis1.py (compute_step_discounted_returns,
compute_uis1_outcome_advantage, episode_norm_reward, step_norm_reward) and the filter in
UI-S1/verl/trainer/ppo/dapo_ray_trainer.py, fit().  Values of the published run: UI-S1/scripts/train_example.sh.

Confirmed by executing the authors' functions on 12 random batches (float32): the largest difference is written at the
end of the file.  The filter stands inside fit() and cannot be imported; its twenty lines were read, not run.

Facts of the authors' code
- A row is a turn.  Row order inside an attempt is time order.
- Return: backwards, G_k = r_k + gamma * carry where the turn matched the expert's action (then carry = G_k); a turn
  that did not match gets G_k = r_k alone and sets the carry to 0, so nothing flows over it in either direction.
- Filter: per group the POPULATION standard deviation (np.std, ddof 0) of G over the rows whose step index is 0, that is
  one value per attempt.  A group stays if std > threshold (strictly; 0.3 in the script, 0.1 in the yaml) or if it has
  exactly one such row.  All rows of the other groups leave the batch before old log-probabilities and advantages are
  computed: they are in no mean, no denominator, no KL.  The batch is refilled with new groups until
  train_batch_size groups are left (at most max_num_gen_batches = 10 generations, then an error).
- Episode advantage: statistics over ALL ROWS of the group (compute_mean_std_cross_all_data is True and no caller changes
  it), of the row's own token-level reward sum, which is the score of that TURN (not of the attempt).
  mean_std_norm: (r - mean) / (sample std, ddof 1, + 1e-6); mean_norm: r - mean.
  Group with one row: mean 0 and std 1, so the advantage is r / (1 + 1e-6), not 0.
- Step advantage: statistics over the rows of the same group AND the same step index, of G.  Sample std (ddof 1) + 1e-6.
  One row in such a set: mean = itself, so 0.
- A = w_episode * A_episode + w_step * A_step, the same for all tokens of the turn.
- Constant set: (r - mean) is 0 or float32 rounding noise, divided by 1e-6.
- Script: mode mean_std_norm, gamma 0.5, both weights 1.0, 8 attempts, KL (k3) 1e-4 in the loss, entropy 0.
  The yaml's default mode is mean_norm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def score(form: float, exact: bool, kind: bool = False, parseable: bool = False) -> float:
    """0.1 format + 0.9 {1 exact, 0.5 the right type only, 0.1 parseable, 0 otherwise}."""
    return 0.1 * form + 0.9 * (1.0 if exact else 0.5 if kind else 0.1 if parseable else 0.0)


def episode(matches: Sequence[bool], threshold: int = 2) -> tuple[int, list[bool]]:
    """(turns played, which of them were patched) given whether the policy would match the expert at each step of the recording.

    A mismatch is patched while fewer than `threshold` errors were patched (-1: always); else the episode stops after that turn.
    """
    patched: list[bool] = []
    for match in matches:
        if not match and threshold != -1 and sum(patched) >= threshold:
            return len(patched) + 1, [*patched, False]
        patched.append(not match)
    return len(patched), patched


def step_returns(rewards, matched, trajectory, gamma=0.5):
    """G per turn.  rewards: float per turn; matched: bool per turn (the action equals the expert's);
    trajectory: id per turn; turns of one attempt stand in time order."""
    rewards = np.asarray(rewards, dtype=np.float64)
    returns = np.zeros(len(rewards))
    carry = {}
    for row in reversed(range(len(rewards))):
        attempt = trajectory[row]
        if matched[row]:
            returns[row] = rewards[row] + gamma * carry.get(attempt, 0.0)
            carry[attempt] = returns[row]
        else:
            returns[row] = rewards[row]
            carry[attempt] = 0.0
    return returns


def keep(returns, group, step, threshold=0.3):
    """True for every turn whose group stays.  step: index of the turn in its attempt, from 0.
    A group without any turn of step 0 does not stay (the authors' dictionary does not know it)."""
    kept = set()
    for g in set(group):
        first = [returns[row] for row in range(len(returns)) if group[row] == g and step[row] == 0]
        if len(first) == 1 or (len(first) > 1 and np.std(first) > threshold):
            kept.add(g)
    return np.array([g in kept for g in group])


def _normalise(value, members, std, alone_mean):
    mean = sum(members) / len(members) if len(members) > 1 else alone_mean
    if not std:
        return value - mean
    deviation = np.std(members, ddof=1) if len(members) > 1 else 1.0
    return (value - mean) / (deviation + 1e-6)


def advantages(rewards, returns, group, step, std=True, episode_weight=1.0, step_weight=1.0):
    """One advantage per turn.  rewards: score of the turn; returns: `step_returns`; std: mean_std_norm or mean_norm."""
    out = np.zeros(len(rewards))
    for row in range(len(rewards)):
        peers = [rewards[other] for other in range(len(rewards)) if group[other] == group[row]]
        episode = _normalise(rewards[row], peers, std, alone_mean=0.0)
        same_step = [returns[other] for other in range(len(rewards)) if group[other] == group[row] and step[other] == step[row]]
        step_part = _normalise(returns[row], same_step, std, alone_mean=returns[row])
        out[row] = episode_weight * episode + step_weight * step_part
    return out


# Confirmed: 12 random batches, executed authors' functions in float32, largest absolute difference 9.7e-7.
