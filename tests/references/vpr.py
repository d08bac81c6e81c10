"""VPR from the authors' code, in plain loops.

Source: thu-nics/VPR, commit 7fa80086bd63fbf02456b1d2ee6c302670ee9468 (the rollout files: 8de0805a635080748a753226b7121dd25fde9465).
`gigpo/core_gigpo.py:compute_vpr_turn_level_advantage` gives the advantages, `agent_system/…/sokoban/envs.py:step_candidate_group`
the choice. Confirmed by executing the state-group part of the authors' advantage function (tests/golden/vpr.json; it computes in
float32, largest difference 2e-7). The choice was read, not executed: it needs their games.

Corner cases of the authors' code: a state with one candidate, or whose candidates all have the same score (population deviation <=
eps), gets 0 and is taken out of the loss. The batch statistics are over the candidates that remain. If their deviation is at most
eps, all get 0.
"""

import statistics

EPS = 1e-8


def advantages(states, scores, mode="mean_then_batch_whiten"):
    """(advantage of each candidate, whether it is in the loss).

    states: for each candidate, the state that it answers. scores: the oracle's score of each candidate.
    mode: "mean_then_batch_whiten" (the paper's configurations) or "group_whiten" (each state divided by its own deviation).
    """
    result, counts = [0.0] * len(scores), [False] * len(scores)
    for state in set(states):
        rows = [row for row, name in enumerate(states) if name == state]
        own = [scores[row] for row in rows]
        if len(rows) < 2 or statistics.pstdev(own) <= EPS:
            continue
        for row in rows:
            result[row] = scores[row] - statistics.fmean(own)
            if mode == "group_whiten":
                result[row] /= statistics.pstdev(own) + EPS
            counts[row] = True
    if mode == "mean_then_batch_whiten" and any(counts):
        left = [value for value, counted in zip(result, counts, strict=True) if counted]
        mean, deviation = statistics.fmean(left), statistics.pstdev(left)
        for row, counted in enumerate(counts):
            if counted:
                result[row] = (result[row] - mean) / (deviation + EPS) if deviation > EPS else 0.0
    return result, counts


def committed(scores):
    """The candidate that is played: the first of those with the largest score (candidates are exchangeable, so: any of the best)."""
    best = 0
    for number, score in enumerate(scores):
        if score > scores[best]:
            best = number
    return best
