"""Pooled TD: a turn is judged by what the group has reached from the state that it led to.

    A_t     = r_t + γ · W(s_t, s_{t+1}) − B(s_t)                  W is 0 after the end of an attempt
    V(s)    = mean over the group's N turns in s of their discounted return
    W(s, u) = (n · mean over the n turns in u that came from s + ρ · V(u)) / (n + ρ)
    B(s)    = (N · V(s) + κ · m) / (N + κ)                        m: mean over all turns of the group

The pooled value of the next state carries less of the luck of later turns than the attempt's own return, which GiGPO takes. W looks at the
state before, too: texts may stand for several states, and V mixes them. ρ says whether they do. Each batch estimates it as the variance of
returns among attempts that came the same way, over that between ways: if anchors tell states apart, ρ is infinite and W is V.

B includes the attempt's own return: without it, turns of rarely visited states get credit of pure chance. `prior` is κ. norm="std" divides
by the root mean square of the whole batch: a group in which little differs is not blown up to the size of the others.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.anchor_groups import AnchorRule, Threshold, anchor_groups
from turnwise.credit.registry import register
from turnwise.credit.segments import (
    EPSILON,
    Penalty,
    TurnDiscount,
    last_turns,
    pair,
    reverse_scan,
    segment_count,
    segment_first,
    segment_sum,
    trajectory_groups,
)
from turnwise.data.anchors import dense
from turnwise.data.rollouts import NOISE, Floats, Ints, Rollouts

BatchNorm = Annotated[Literal["std", "none"], Help("divide by the root mean square of the batch + 1e-6, or do not divide")]
Prior = Annotated[float, Help("κ: how many turns the group's mean return counts for in a state's baseline", low=0)]


@register("pooled_td", paper="Turnwise: docs/methods/pooled_td.md", parts={"step": None}, needs=("group.peers",))
def pooled_td(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 0.95,
    prior: Prior = 1.0,
    norm: BatchNorm = "std",
    invalid_penalty: Penalty = 0.0,
    anchors: AnchorRule = "exact",
    threshold: Threshold = 0.95,
) -> Floats:
    """A turn's reward and the value of where it led, minus the value of its state, both pooled over the group."""
    reward = r.reward - invalid_penalty * ~r.valid
    returns = reverse_scan(reward, gamma, r.trajectory)
    state, states = anchor_groups(r, anchors, threshold)
    total, visits = segment_sum(returns, state, states), segment_count(state, states)
    groups = len(r.group_labels)
    mean = segment_sum(returns, r.group, groups) / np.maximum(segment_count(r.group, groups), 1)

    last = last_turns(r)
    following = np.where(last, states, np.append(state[1:], states))  # one more state, of no worth: the end
    way, ways = pair(state, following)
    future = np.where(last, 0.0, np.append(returns[1:], 0.0))
    value = np.append(total / visits, 0.0)[following]
    came, times = segment_sum(future, way, ways)[way], segment_count(way, ways)[way]
    value += (came / times - value) * times / (times + mixture(future[~last], way[~last], following[~last], r.trajectory[~last], prior))
    target = reward + gamma * value
    baseline = (total[state] + prior * mean[r.group]) / (visits[state] + prior)
    credit = target - baseline
    credit[np.abs(credit) <= NOISE * (np.abs(target) + np.abs(baseline))] = 0.0
    credit[segment_count(trajectory_groups(r), groups)[r.group] == 1] = 0.0
    return credit if norm == "none" else credit / (np.sqrt(np.mean(credit**2)) + EPSILON)


def mixture(future: Floats, way: Ints, following: Ints, trajectory: Ints, unknown: float) -> float:
    """ρ, by an analysis of variance in which an attempt counts once for a way: its turns share their luck.

    Infinite if ways differ no more than by chance; `unknown` if no way was taken twice, or no state reached in two ways.
    """
    taken, size = pair(way, trajectory)
    first = np.unique(taken, return_index=True)[1]
    sample = segment_sum(future, taken, size) / np.maximum(segment_count(taken, size), 1)
    (names, way), (places, state) = dense(way[first]), dense(following[first])
    ways, states = len(names), len(places)
    entered = segment_first(state, way, ways)
    attempts, visitors = segment_count(way, ways), segment_count(state, states)
    by_way, by_state = segment_sum(sample, way, ways) / attempts, segment_sum(sample, state, states) / visitors
    pairs = float(np.sum(visitors - segment_sum(attempts.astype(np.float64) ** 2, entered, states) / visitors))
    if size == ways or pairs == 0:
        return unknown
    within = float(np.sum((sample - by_way[way]) ** 2)) / (size - ways)
    between = (float(np.sum(attempts * (by_way - by_state[entered]) ** 2)) - (ways - states) * within) / pairs
    return within / between if between > 0 else np.inf
