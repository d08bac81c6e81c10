"""DPEPO: the outcome of an attempt with several copies of a task, compared within the group, and weighted by how new a turn's actions are.

    A(τ) = (O(τ) − mean O) / (std O + 1e-6)      O = 1 if any copy succeeds, otherwise 0; over the turns of the group
    A_k  = A · W_k if A ≥ 0, otherwise A · (2 − W_k)

With `weighting` "step", the authors' default, the statistics are over turns: each has the O of its trajectory, so long trajectories weigh
more. W is the column `turn.diversity`, from 0 (everything was tried before) to 1; the signal `dpepo` gives it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Weighting, episode_returns, standardise, trajectory_groups
from turnwise.data.rollouts import Floats, Rollouts

Outcome = Annotated[Literal["success", "return"], Help("what is compared: whether a copy succeeded, or the return")]


@register("dpepo", paper="DPEPO, arXiv 2604.24320", needs=("turn.diversity", "group.peers"))
def dpepo(r: Rollouts, *, outcome: Outcome = "success", norm: Norm = "std", weighting: Weighting = "step") -> Floats:
    """Episode credit; turns that try something new gain more from a good outcome and lose less by a bad one."""
    if outcome == "success" and r.has("trajectory.success"):
        score = r.column("trajectory.success").astype(np.float64)
    else:
        score = episode_returns(r)
    if weighting == "step":
        credit = standardise(score[r.trajectory], r.group, len(r.group_labels), norm)
    else:
        credit = standardise(score, trajectory_groups(r), len(r.group_labels), norm)[r.trajectory]
    weight = np.asarray(r.need("turn.diversity", "dpepo"), np.float64)
    return np.asarray(credit * np.where(credit >= 0, weight, 2.0 - weight))
