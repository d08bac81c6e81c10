"""Earlier forms of Pooled TD, and the first one with a part replaced. `turnwise/credit/pooled_td.py` has what became of it.

any_way        the second form: the next state's value is that of all who came there, by whatever way
first_form     an attempt counts once in a state, with the mean of its visits; prior: the mean of the others' whole returns
own_return     a turn's outcome is the attempt's own return, not the pooled value of the next state
others_alone   a state's baseline leaves out the attempt's own return
every_visit    every visit of a state counts, not every attempt once
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turnwise.credit.pooled_td import Prior
from turnwise.credit.registry import register
from turnwise.credit.segments import (
    TurnDiscount,
    discounted_returns,
    last_turns,
    pair,
    segment_count,
    segment_first,
    segment_sum,
    trajectory_groups,
)
from turnwise.data.rollouts import Floats, Rollouts


@register("any_way", needs=("group.peers",))
def any_way(r: Rollouts, *, gamma: TurnDiscount = 0.95, prior: Prior = 1.0) -> Floats:
    """The value of the next state, minus that of the turn's own; rare states are compared with the mean of all turns."""
    returns, groups = discounted_returns(r, gamma), len(r.group_labels)
    state, total, visits = by_state(r, returns, np.arange(len(r)))
    mean = (segment_sum(returns, r.group, groups) / np.maximum(segment_count(r.group, groups), 1))[r.group]
    return scaled(outcome(r, state, total, visits, gamma) - (total[state] + prior * mean) / (visits[state] + prior), r)


@register("first_form", needs=("group.peers",))
def first_form(r: Rollouts, *, gamma: TurnDiscount = 0.95, prior: Prior = 1.0) -> Floats:
    """The next state's value minus that of the turn's state, both pooled over attempts."""
    returns = discounted_returns(r, gamma)
    state, total, attempts = by_state(r, returns, pair(r.trajectory, pair(r.group, r.anchor)[0])[0])
    return scaled(outcome(r, state, total, attempts, gamma) - (total[state] + prior * others(r, returns)) / (attempts[state] + prior), r)


@register("own_return", needs=("group.peers",))
def own_return(r: Rollouts, *, gamma: TurnDiscount = 0.95, prior: Prior = 1.0) -> Floats:
    """Pooled baselines, and the attempt's own return."""
    returns = discounted_returns(r, gamma)
    state, total, attempts = by_state(r, returns, pair(r.trajectory, pair(r.group, r.anchor)[0])[0])
    return scaled(returns - (total[state] + prior * others(r, returns)) / (attempts[state] + prior), r)


@register("others_alone", needs=("group.peers",))
def others_alone(r: Rollouts, *, gamma: TurnDiscount = 0.95, prior: Prior = 1.0) -> Floats:
    """The baseline of a state is that of the other attempts."""
    returns = discounted_returns(r, gamma)
    visit = pair(r.trajectory, pair(r.group, r.anchor)[0])[0]
    state, total, attempts = by_state(r, returns, visit)
    own = (segment_sum(returns, visit, len(r)) / np.maximum(segment_count(visit, len(r)), 1))[visit]
    baseline = (total[state] - own + prior * others(r, returns)) / np.maximum(attempts[state] - 1 + prior, prior)
    return scaled(outcome(r, state, total, attempts, gamma) - baseline, r)


@register("every_visit", needs=("group.peers",))
def every_visit(r: Rollouts, *, gamma: TurnDiscount = 0.95, prior: Prior = 1.0) -> Floats:
    """An attempt that returns to a state counts once for each visit."""
    returns = discounted_returns(r, gamma)
    state, total, visits = by_state(r, returns, np.arange(len(r)))
    baseline = (total[state] + prior * others(r, returns)) / (visits[state] + prior)
    return scaled(outcome(r, state, total, visits, gamma) - baseline, r)


def by_state(r: Rollouts, returns: Floats, sample: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats, Floats]:
    """The state of each turn, and by state the sum of its samples' mean returns and how many samples it has."""
    state, states = pair(r.group, r.anchor)
    mean = segment_sum(returns, sample, len(r)) / np.maximum(segment_count(sample, len(r)), 1)
    first = np.unique(sample, return_index=True)[1]
    place = segment_first(state, sample, len(r))[sample[first]]
    return state, segment_sum(mean[sample[first]], place, states), segment_count(place, states).astype(np.float64)


def outcome(r: Rollouts, state: NDArray[np.int64], total: Floats, count: Floats, gamma: float) -> Floats:
    """A turn's reward, and the pooled value of the state after it."""
    return r.reward + gamma * np.where(last_turns(r), 0.0, np.append((total / count)[state[1:]], 0.0))


def others(r: Rollouts, returns: Floats) -> Floats:
    """For each turn, the mean return of the other attempts of its group."""
    group, first = trajectory_groups(r), segment_first(returns, r.trajectory, len(r.trajectory_labels))
    size = segment_count(group, len(r.group_labels))[group]
    return ((segment_sum(first, group, len(r.group_labels))[group] - first) / np.maximum(size - 1, 1))[r.trajectory]


def scaled(credit: Floats, r: Rollouts) -> Floats:
    """Divided by its root mean square; an attempt that is alone has none."""
    alone = segment_count(trajectory_groups(r), len(r.group_labels))[r.group] == 1
    credit = np.where(alone | (np.abs(credit) < 1e-9), 0.0, credit)
    return credit / (np.sqrt(np.mean(credit**2)) + 1e-6)
