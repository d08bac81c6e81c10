"""HGPO (arXiv 2602.22817), written from the authors' code.

Source: recipe/hgpo/core_hgpo.py of langfengQ/verl-agent, functions compute_hgpo_outcome_advantage and hgpo_advantage_estimate, as held in
zzj1111/alfworldauto at 37aec781 (OliverLeeXZ/SERL at 5a2a85b1 has the same file). Confirmed by executing compute_hgpo_outcome_advantage on
12 random batches: largest difference 3e-7 (float32).

- A row is a turn; turns of an attempt stand in time order. s is the step return of the row.
- For k = 1 .. min(K + 1, position + 1) a turn belongs to the set of all turns of its task whose last k anchors (the current one included)
  are equal. Several turns of one attempt may be in one set.
- A set of one turn gives nothing. Otherwise a = (s - mean) / (std + 1e-6), POPULATION std, or s - mean.
- Levels whose a is exactly 0 are left out (a constant set, or a turn that equals the mean).
- A = sum of w_k a_k / (sum of w_k + 1e-6) with w_k = (k + 1)**alpha, so 2, 3, 4 .. for alpha 1. Nothing left: 0.
- base_group: the episode advantage joins as level 0 with weight 1. Off by default, so there is no episode term.
- The paper's form (from a digest of it): w_k = k**alpha, over all sets of at least two turns, nothing added to the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from .forms import scores


def advantages(
    step_return: Sequence[float],
    anchor: Sequence[object],
    group: Sequence[int],
    trajectory: Sequence[int],
    history: int,
    std: bool = True,
    alpha: float = 1.0,
    episode: Sequence[float] | None = None,
    paper: bool = False,
) -> list[float]:
    """One advantage per turn. history: K; episode: the episode advantage per turn, or None."""
    n = len(step_return)
    tail = []
    for row in range(n):
        past = [other for other in range(row + 1) if (group[other], trajectory[other]) == (group[row], trajectory[row])]
        tail.append([anchor[other] for other in past[-(history + 1) :]])
    out = []
    for row in range(n):
        items = [] if episode is None else [(1.0, episode[row])]
        for k in range(1, len(tail[row]) + 1):
            members = [
                other for other in range(n) if group[other] == group[row] and len(tail[other]) >= k and tail[other][-k:] == tail[row][-k:]
            ]
            if len(members) > 1:
                a = scores([step_return[other] for other in members], std, ddof=0)[members.index(row)]
                items.append(((k if paper else k + 1) ** alpha, a))
        items = [(w, a) for w, a in items if paper or a != 0]
        total = sum(w for w, _ in items) + (0.0 if paper else 1e-6)
        out.append(sum(w * a for w, a in items) / total if items else 0.0)
    return out
