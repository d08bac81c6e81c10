"""VPR from the authors' code, in plain loops.

Source: thu-nics/VPR, commit 7fa80086bd63fbf02456b1d2ee6c302670ee9468 (the rollout files: 8de0805a635080748a753226b7121dd25fde9465).
`gigpo/core_gigpo.py:compute_vpr_turn_level_advantage` gives the advantages, `agent_system/…/sokoban/envs.py:step_candidate_group` the choice.
Confirmed by executing the state-group part of the authors' advantage function (tests/golden/vpr.json; it computes in float32, largest difference 2e-7).
The choice was read, not executed: it needs their games.

Corner cases of the authors' code: a state with one candidate, or whose candidates all have the same score (population deviation <= eps),
gets 0 and is taken out of the loss. The batch statistics are over the candidates that remain. If their deviation is at most eps, all get 0.
"""

import numpy as np

EPS = 1e-8


def advantages(states, scores, mode="mean_then_batch_whiten"):
    """(advantage of each candidate, whether it is in the loss).

    states: for each candidate, the state that it answers (any hashable). scores: the oracle's score of each candidate.
    mode: "mean_then_batch_whiten" (the paper's configurations) or "group_whiten" (each state divided by its own deviation).
    """
    scores = np.asarray(scores, np.float64)
    result = np.zeros(len(scores))
    counts = np.zeros(len(scores), bool)
    for state in sorted(set(states)):
        rows = [row for row, name in enumerate(states) if name == state]
        if len(rows) < 2 or np.std(scores[rows]) <= EPS:
            continue
        for row in rows:
            result[row] = scores[row] - np.mean(scores[rows])
            if mode == "group_whiten":
                result[row] /= np.std(scores[rows]) + EPS
            counts[row] = True
    if mode == "mean_then_batch_whiten" and counts.any():
        mean, deviation = np.mean(result[counts]), np.std(result[counts])
        result[counts] = (result[counts] - mean) / (deviation + EPS) if deviation > EPS else 0.0
    return result, counts


def committed(scores):
    """The candidate that is played: the first of those with the largest score (candidates are exchangeable, so: any of the best)."""
    best = 0
    for number, score in enumerate(scores):
        if score > scores[best]:
            best = number
    return best
