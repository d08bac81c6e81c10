"""HGPO (arXiv 2602.22817), written from the authors' code.

Source: recipe/hgpo/core_hgpo.py of langfengQ/verl-agent, functions compute_hgpo_outcome_advantage, hgpo_advantage_estimate
and trajectory_advantages, as held in zzj1111/alfworldauto at 37aec781 (OliverLeeXZ/SERL at 5a2a85b1 has the same file).
Confirmed by executing compute_hgpo_outcome_advantage on 12 random batches: largest difference 2e-7 (float32).

What the code does
- A row is a turn; turns of an attempt stand in time order.  s is the step return of the row.
- For k = 1 .. min(K + 1, position + 1) a turn belongs to the set of all turns of its task whose last k anchors (the current
  one included) are equal.  Several turns of one attempt may be in one set.
- A set of one turn gives nothing.  Otherwise a = (s - mean) / (std + 1e-6), POPULATION std, or s - mean.
- Levels whose a is exactly 0 are left out (a constant set, or the turn that equals the mean).
- A = sum of w_k a_k / (sum of w_k + 1e-6) with w_k = (k + 1)**alpha, so 2, 3, 4 .. for alpha 1; the paper's weights are
  1, 2, 3 ..
- base: the episode advantage joins as level 0 with weight 1: over ALL TURNS of the task, sample std + 1e-6; a task with one
  turn has mean 0 and std 1.  Off by default, so there is no episode term.
- Nothing left: 0.
"""

import numpy as np


def advantages(step_return, anchor, group, trajectory, history, std=True, alpha=1.0, base=None, weight=lambda k, alpha: (k + 1) ** alpha):
    """One advantage per turn.

    step_return: s per turn; anchor, group, trajectory: ids per turn; history: K, turns looked back;
    base: None, or the episode score per turn; weight: w_k of the authors' code (level k counts the current state).
    """
    n = len(step_return)
    tail = []
    for row in range(n):
        past = [other for other in range(row + 1) if (group[other], trajectory[other]) == (group[row], trajectory[row])]
        tail.append([anchor[other] for other in past[-(history + 1) :]])
    out = np.zeros(n)
    for row in range(n):
        items = []
        if base is not None:
            scores = [float(base[other]) for other in range(n) if group[other] == group[row]]
            mean = np.mean(scores) if len(scores) > 1 else 0.0
            deviation = np.std(scores, ddof=1) if len(scores) > 1 else 1.0
            items.append((0, (base[row] - mean) / (deviation + 1e-6) if std else base[row] - mean))
        for k in range(1, len(tail[row]) + 1):
            members = [
                float(step_return[other])
                for other in range(n)
                if group[other] == group[row] and len(tail[other]) >= k and tail[other][-k:] == tail[row][-k:]
            ]
            if len(members) == 1:
                continue
            # A constant set is exactly 0; the mean of equal numbers may not be.
            centred = 0.0 if len(set(members)) == 1 else step_return[row] - np.mean(members)
            items.append((k, centred / (np.std(members) + 1e-6) if std else centred))
        items = [(k, value) for k, value in items if value != 0]
        if items:
            total = sum(weight(k, alpha) for k, _ in items)
            out[row] = sum(weight(k, alpha) * value for k, value in items) / (total + 1e-6)
    return out
