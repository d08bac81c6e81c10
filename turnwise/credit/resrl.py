"""ResRL: in failed attempts, mainly those tokens are punished whose hidden state is unlike all of the successful ones.

    e_t = residual of the token's hidden state outside the subspace of the group's successful tokens (column token.residual)
    n_t = clip((e_t − q_low) / (q_high − q_low), 0, 1)     quantiles over the tokens of the group's failed trajectories
    w_t = least + (1 − least) · n_t
    A'  = A · w_t in a failed trajectory, A · positive in a successful one; A of another algorithm

A trajectory is successful if the environment says so; in columns that do not tell, if its return is above 0. Where no residual is known
(NaN: the group has no success, no failure, or too few tokens), w is 1. Where the quantiles are equal, w is (least + 1) / 2.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import assign, register
from turnwise.credit.segments import episode_returns
from turnwise.data.rollouts import Bools, Floats, Ints, Rollouts

RESIDUAL = "token.residual"
FLAT = 1e-5  # quantiles that are nearer than this are equal


@register("resrl", paper="Lin et al. 2026, ResRL, github.com/1229095296/ResRL", needs=("group.peers", RESIDUAL))
def resrl(
    r: Rollouts,
    *,
    base: Annotated[str, Help("the algorithm whose advantages are weighted")] = "grpo",
    positive: Annotated[float, Help("factor in successful trajectories", low=0)] = 0.1,
    least: Annotated[float, Help("smallest factor in failed trajectories", low=0, high=1)] = 0.1,
    low: Annotated[float, Help("quantile of residuals that gets the smallest factor", low=0, high=1)] = 0.2,
    high: Annotated[float, Help("quantile of residuals that gets the factor 1", low=0, high=1)] = 0.8,
) -> dict[str, Any]:
    """Advantages of another algorithm, weighted: little for successes, and by the residual of each token for failures."""
    of_turn = np.diff(r.token_offsets)
    base_credit = assign(base, r)
    advantage = np.asarray(base_credit.values, np.float64)
    advantage = np.repeat(advantage, of_turn) if base_credit.level == "turn" else advantage
    residual = np.asarray(r.column(RESIDUAL), np.float64)
    won = np.repeat(successes(r)[r.trajectory], of_turn)
    group = np.repeat(r.group, of_turn)
    known = ~won & ~np.isnan(residual)
    weight = np.where(won, positive, 1.0)
    bottom, top = quantiles(residual[known], group[known], len(r.group_labels), (low, high))[group[known]].T
    flat = top - bottom < FLAT
    share = np.where(flat, 0.5, np.clip((residual[known] - bottom) / np.where(flat, 1.0, top - bottom), 0.0, 1.0))
    weight[known] = least + (1.0 - least) * share
    return {"token.advantage": advantage * weight, "token.residual_weight": weight}


def successes(r: Rollouts) -> Bools:
    """Whether each trajectory was successful."""
    won: Bools = np.asarray(r.column("trajectory.success"), np.bool_) if r.has("trajectory.success") else episode_returns(r) > 0
    return won


def quantiles(values: Floats, group: Ints, size: int, at: tuple[float, float]) -> Floats:
    """Two quantiles of each group, [groups, 2], interpolated between neighbours; 0 for an empty group. Groups follow one another."""
    starts = np.searchsorted(group, np.arange(size + 1))
    found = np.zeros((size, 2))
    for number in np.flatnonzero(np.diff(starts)):
        found[number] = np.quantile(values[starts[number] : starts[number + 1]], at)
    return found
