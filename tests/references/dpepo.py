"""DPEPO: GRPO over turns, times a weight for diverse exploration.

Source: LePanda026/Code-for-DPEPO at 4edaa160: verl/trainer/ppo/core_algos.py compute_grpo_outcome_advantage;
agent_system/multi_turn_rollout/rollout_loop_parallel.py calculate_penalties, calculate_transition_repeat,
calculate_depth_repeat (ALFWorld) and the same in rollout_loop_parallel_sciworld.py (ScienceWorld).

Confirmed by executing all of these functions (12 random batches, differences at the end of the file).

Facts of the authors' code
- A row is one turn of the policy (which acts in up to P parallel environments); its score is the return of the attempt
  (sum over turns of the best reward among the environments), copied on every turn.  The scripts switch the penalty for
  invalid actions off (use_invalid_action_penalty=False), so all turns of an attempt have one score.
- compute_mean_std_cross_steps is True and no caller changes it: mean and std are over the TURNS of the group, so a long
  attempt weighs more.  False (never used) takes the first row seen of each attempt.
- std is the sample deviation (ddof 1) and eps = 1e-6 is added to it.  Group with a single row: mean 0 and std 1, so the
  advantage is score / (1 + 1e-6).
- Weight W of the turn: A *= W where A >= 0, A *= 2 - W where A < 0.
- W is rounded to 4 decimals.  A turn without any action: W = 0.5 (no_action_penalty).
- History of an environment: all actions before this turn (the authors read it after the step, but the worker files the
  current action under "last", so the current one is not in it).
- c1: how often the action occurs in this environment's history.
- pair: (last action of the history, action).  With an empty history the authors write `(action)`, a string and not a
  pair, which no pair equals: c2 = c3 = 0.
- c2: how often the pair occurs among consecutive pairs of this environment's history.
- c3: the sum over the other environments ACTING THIS TURN of the pair's occurrences in their history INCLUDING their
  action of this turn.
- per environment (0.8**c1 + 0.95**c2 + 0.95**c3) / 3, mean over the acting environments with index in 1..P.
- dup: number of actions minus number of different actions this turn, over all actions but the exact text "look" (also
  actions addressed to environments beyond P).  W = (0.8**dup + that mean) / 2.
- ScienceWorld: a third part 0.95**(observations of this turn that contain "No known action matches that input."),
  W = (three parts) / 3.
- Scripts: omega = 0.80 (the yaml says 0.95); 8 attempts, P = 4, KL 0.01 in the loss, token mean.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def weight(histories, actions, parallel=4, invalid=None, alpha=0.8, depth=0.95, width=0.95, omega=0.8, invalid_base=0.95, no_action=0.5):
    """W of one turn.  histories: {environment: list of earlier actions}; actions: {environment: action of this turn},
    environments counted from 1; invalid: None (ALFWorld) or the number of refused actions of this turn (ScienceWorld)."""
    if not actions:
        return no_action
    actions = {key: action.strip() for key, action in actions.items()}
    histories = {key: [action.strip() for action in history] for key, history in histories.items()}
    acting = [key for key in actions if 1 <= key <= parallel]

    def occurrences(pair, history):
        return sum(1 for first, second in pairwise(history) if (first, second) == pair)

    per_environment = []
    for key in acting:
        history = histories[key]
        c1 = sum(1 for action in history if action == actions[key])
        c2 = c3 = 0
        if history:
            pair = (history[-1], actions[key])
            c2 = occurrences(pair, history)
            c3 = sum(occurrences(pair, histories[other] + [actions[other]]) for other in acting if other != key)
        per_environment.append((alpha**c1 + depth**c2 + width**c3) / 3)
    named = [action for action in actions.values() if action != "look"]
    parts = [omega ** (len(named) - len(set(named))), sum(per_environment) / len(per_environment)]
    if invalid is not None:
        parts.append(invalid_base**invalid)
    return round(sum(parts) / len(parts), 4)


def advantages(score, weights, group, trajectory, over="turns", std=True):
    """One advantage per turn.  score: return of the turn's attempt; weights: `weight` per turn;
    over: "turns" (the authors) or "attempts" (first row of each attempt)."""
    out = np.zeros(len(score))
    for row in range(len(score)):
        seen, peers = set(), []
        for other in range(len(score)):
            if group[other] != group[row] or (over == "attempts" and trajectory[other] in seen):
                continue
            seen.add(trajectory[other])
            peers.append(float(score[other]))
        mean = sum(peers) / len(peers) if len(peers) > 1 else 0.0
        deviation = np.std(peers, ddof=1) if len(peers) > 1 else 1.0
        value = (score[row] - mean) / (deviation + 1e-6) if std else score[row] - mean
        out[row] = value * (2 - weights[row] if value < 0 else weights[row])
    return out


# Confirmed: 240 random turns, weights equal exactly (both environments); 12 random batches of advantages 2.5e-7 (float32).
