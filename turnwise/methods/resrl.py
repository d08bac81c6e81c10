"""ResRL: in failed attempts, mainly those tokens are punished whose hidden state is unlike all of the successful ones.

    X   = layer-normed hidden states of the tokens of successful trajectories of the group, minus their mean μ
    V   = the first `rank` principal directions of X
    e_t = ‖(h_t − μ) − V Vᵀ (h_t − μ)‖² / size          for each token of its failed trajectories, h_t layer-normed

Credit weights the advantages of another algorithm:

    e_t = residual of the token's hidden state outside the subspace of the group's successful tokens (column token.residual)
    n_t = clip((e_t − q_low) / (q_high − q_low), 0, 1)     quantiles over the tokens of the group's failed trajectories
    w_t = least + (1 − least) · n_t
    A'  = A · w_t in a failed trajectory, A · positive in a successful one; A of another algorithm

A trajectory is successful if the environment says so; in columns that do not tell, if its return is above 0. Where no residual is known
(NaN: the group has no success, no failure, or too few tokens), w is 1. Where the quantiles are equal, w is (least + 1) / 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.registry import assign
from turnwise.credit.segments import episode_returns
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Bools, Floats, Ints, Rollouts, ragged
from turnwise.methods.registry import Brings, method, signal
from turnwise.util.seeds import derive

PAPER = "Lin et al. 2026, ResRL, github.com/1229095296/ResRL"
FEWEST = 4  # tokens of successes that span a subspace worth speaking of
EXACT = 1024  # up to this size directions are computed exactly
PASSES = 4  # of the iteration beyond it
Rank = Annotated[int, Help("principal directions of the successful tokens", low=1)]
Layer = Annotated[int, Help("hidden states of which layer: -1 is the last one, -2 the one before", high=-1)]
RESIDUAL = "token.residual"
FLAT = 1e-5  # quantiles that are nearer than this are equal


@signal("residual", paper=PAPER, needs=("model.policy",), gives=(RESIDUAL,))
def residual(
    batch: Batch,
    models: Any,
    *,
    rank: Rank = 64,
    layer: Layer = -2,
    most: Annotated[int, Help("tokens of successes of a group that are looked at, evenly spaced", low=FEWEST)] = 4096,
) -> Mapping[str, NDArray[Any]]:
    """How far the hidden state of each token of a failure is outside of what successes of its group span; NaN where neither is known."""
    offsets = batch.rollouts.token_offsets
    result = np.full(int(offsets[-1]), np.nan)
    success = successes(batch.rollouts)[batch.numbers]
    groups: dict[Any, list[int]] = {}
    for k, trajectory in enumerate(batch.trajectories):
        groups.setdefault(trajectory.group, []).append(k)
    for members in groups.values():
        won = success[members]
        if won.all() or not won.any():
            continue
        turns = np.concatenate([np.asarray(batch.rows(k)) for k in members])
        place = ragged(offsets, turns)
        of_won = np.repeat(np.repeat(won, [len(batch.rows(k)) for k in members]), np.diff(offsets)[turns])
        states = normed(models.policy.hidden(batch.part(members), "token", layer=layer))
        good = states[of_won]
        if len(good) >= FEWEST:
            result[place[~of_won]] = residuals(good[evenly(len(good), most)], states[~of_won], rank)
    return {RESIDUAL: result}


def residuals(good: Floats, others: Floats, rank: int) -> Floats:
    """The squared distance of each of the others from the subspace of the good ones, per dimension."""
    middle = good.mean(0)
    v = directions(good - middle, min(rank, len(good) - 1, good.shape[1]))
    apart = others - middle
    rest: Floats = apart - (apart @ v) @ v.T
    return np.asarray((rest**2).sum(1) / good.shape[1])


def directions(x: Floats, rank: int) -> Floats:
    """The first principal directions of centred rows, [size, rank]: exactly where x is small, else by iteration on a subspace."""
    if min(x.shape) <= EXACT:
        return np.asarray(np.linalg.svd(x, full_matrices=False)[2][:rank].T)
    q = np.random.default_rng(derive(0, "resrl", *x.shape) % 2**63).normal(size=(x.shape[1], rank))
    for _ in range(PASSES):
        q = np.linalg.qr(x.T @ (x @ np.linalg.qr(q)[0]))[0]
    return np.asarray(q)


def normed(states: NDArray[Any]) -> Floats:
    """Each row with mean 0 and variance 1, as a layer norm without weights gives it."""
    exact = np.asarray(states, np.float64)
    centred = exact - exact.mean(1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5))


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """At most `most` of `count` places, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


@credit.register("resrl", paper="Lin et al. 2026, ResRL, github.com/1229095296/ResRL", needs=("group.peers", RESIDUAL))
def resrl_credit(
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
    result = np.zeros((size, 2))
    for number in np.flatnonzero(np.diff(starts)):
        result[number] = np.quantile(values[starts[number] : starts[number + 1]], at)
    return result


@method(
    "resrl",
    paper=PAPER,
    changes="credit",
    costs="one pass over groups with successes and failures",
    evidence="code",
    options={resrl_credit: "positive least", residual: "rank layer"},
)
def resrl() -> dict[str, Any]:
    """Tokens of failures are punished less if successes of the same task have similar hidden states."""
    return Brings({"credit.name": "resrl", "signal": [{"name": "residual"}]}, {"objective.name": "clip", "objective.aggregation": "token"})
