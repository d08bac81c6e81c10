"""T-STAR: equal steps of a group's attempts are merged into a tree, and a step is worth the mean return of the attempts that took it.

    state   turns of a group with the same anchor, after the same state-changing actions
    step    turns of a state after which these actions are the same: the same state-changing action, or any that changed nothing
    Q(step) = mean return of the attempts that took it, each counted once
    A(step) = (Q(step) − mean R) / (std R + 1e-6)              over the trajectories of the group

A step that d attempts share has 1/d of the variance of a single return. An action changes the state if the anchor after it differs from
the one before. `turn.action` has equal integers for equal actions; the signal `t_star` gives it. `turn.merged_state`, if it is there,
replaces the anchors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, episode_returns, pair, segment_count, segment_first, segment_sum, standardise, trajectory_groups
from turnwise.data.anchors import Ints, dense
from turnwise.data.rollouts import Bools, Floats, Rollouts


class Tree(NamedTuple):
    """The number of each turn's state, and of the step that it takes from there."""

    state: Ints
    step: Ints


@register("t_star", paper="T-STAR, arXiv 2604.07165", needs=("turn.action", "group.peers"))
def t_star(r: Rollouts, *, norm: Norm = "std") -> dict[str, Any]:
    """A step's mean return over all attempts of the group that took it, relative to the group's mean."""
    tree = tree_of(r, np.asarray(r.need("turn.action", "t_star")))
    score = standardise(episode_returns(r), trajectory_groups(r), len(r.group_labels), norm)
    return {"turn.advantage": step_values(r, tree.step, score), "turn.node": tree.step, "turn.state_node": tree.state}


def step_values(r: Rollouts, step: Ints, score: Floats) -> Floats:
    """For each turn the mean `score` of the trajectories that took its step, each counted once; `score` is by trajectory."""
    size = int(step.max()) + 1
    visit, visits = pair(r.trajectory, step)
    weight = 1.0 / segment_count(visit, visits).astype(np.float64)[visit]
    total, count = segment_sum(weight * score[r.trajectory], step, size), segment_sum(weight, step, size)
    values: Floats = (total / np.maximum(count, 1e-12))[step]
    return values


def divergences(r: Rollouts, tree: Tree, gap: float) -> tuple[Ints, Ints, Floats]:
    """Forks, for rollouts in order: states whose steps differ by at least `gap` standard deviations of the group's returns. The first turn
    of the best step, the first turn of the worst one, and the difference."""
    score = standardise(episode_returns(r), trajectory_groups(r), len(r.group_labels), "std")
    value, size = step_values(r, tree.step, score), int(tree.state.max()) + 1
    orders = [np.lexsort((np.arange(len(r)), sign * value, tree.state)) for sign in (-1.0, 1.0)]
    best, worst = (segment_first(order, tree.state[order], size).astype(np.int64) for order in orders)
    difference = value[best] - value[worst]
    far = difference >= max(gap, 1e-9)
    return best[far], worst[far], difference[far]


def tree_of(r: Rollouts, action: NDArray[Any]) -> Tree:
    """States and steps of rollouts in order."""
    anchor = r.column("turn.merged_state").astype(np.int64) if r.has("turn.merged_state") else r.anchor
    code = dense(action.astype(np.int64))[1]
    place = (r.group * (int(anchor.max()) + 1) + anchor).astype(np.uint64)
    state = dense(_mixed(place, histories(r, code)).view(np.int64))[1]
    step, _ = pair(state, np.where(_changes(r), code + 1, 0))
    return Tree(state, step)


def histories(r: Rollouts, action: Ints) -> NDArray[np.uint64]:
    """A hash of the state-changing actions of the trajectory before each turn. It is a sum over (action, place in the sequence), so it
    takes one pass; equal sequences have equal hashes, and others differ in 64 bits."""
    changes = _changes(r)
    starts = np.flatnonzero(np.append(True, r.trajectory[1:] != r.trajectory[:-1]))
    lengths = np.diff(np.append(starts, len(r)))
    upto: Ints = np.cumsum(changes) - changes
    rank: Ints = upto - np.repeat(upto[starts], lengths)  # state-changing actions before this one
    item = np.where(changes, _mixed(action.astype(np.uint64), rank.astype(np.uint64)), np.uint64(0))
    total = np.cumsum(item, dtype=np.uint64) - item
    return np.asarray(total - np.repeat(total[starts], lengths))


def _changes(r: Rollouts) -> Bools:
    """Whether a turn changed the state: another anchor follows it. The last turn of a trajectory counts as a change if none is known."""
    if r.next_anchor is not None:
        return np.asarray(r.next_anchor != r.anchor)
    changed = np.ones(len(r), np.bool_)
    changed[:-1] = (r.anchor[1:] != r.anchor[:-1]) | (r.trajectory[1:] != r.trajectory[:-1])
    return changed


def _mixed(one: NDArray[np.uint64], two: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Well-mixed bits of a pair of numbers."""
    mixed = one * np.uint64(0x9E3779B97F4A7C15) + (two + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
