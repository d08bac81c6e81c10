"""GraphGPO: the states of a task group as a graph, and the distance to success as return.

The turns of a group are edges from their state to the next. The last turn of every successful trajectory leads to a node "success".
With d(s) the minimum number of turns from s to success along edges that any trajectory took (the largest such number of the group + 1
if success cannot be reached), a turn that leads to s' scores

    G = scale · γ^d(s')                        or, with relative=True, scale · γ^(d(s') − d(s) + 1)

and is compared with the other turns from the same state, as in GiGPO: A = w · A_episode + ω · A_step. A failed attempt that passed
through good states thus gets credit for them. If all fail, the scores are constant and only the episode credit remains.
The column `success` marks successful trajectories; without it, a return above 0 does. The column `next_anchor` gives the state after the
last turn of a failed trajectory; if unknown, it is a separate dead end.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.anchor_groups import AnchorRule, Threshold, anchor_groups
from turnwise.credit.gigpo import EpisodeWeight, StepWeight, step_credit
from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Penalty, Weighting, dense, episode_returns, segment_first, segment_sum
from turnwise.data.anchors import UNKNOWN, Ints
from turnwise.data.rollouts import NOISE, Floats, Rollouts, ragged


@register(
    "graph_gpo",
    paper="Graph-based Group Policy Optimization, 2026, arXiv 2605.26684",
    parts={"episode": "episode_weight", "step": "omega"},
    needs=("group.peers",),
)
def graph_gpo(
    r: Rollouts,
    *,
    gamma: Annotated[float, Help("discount per unit of graph distance to success", low=0, high=1)] = 0.1,
    scale: Annotated[float, Help("score of a turn that leads to success itself", low=0)] = 10.0,
    relative: Annotated[bool, Help("score how much a turn shortened the distance, not the distance itself")] = False,
    omega: StepWeight = 1.0,
    episode_weight: EpisodeWeight = 1.0,
    norm: Norm = "std",
    weighting: Weighting = "trajectory",
    invalid_penalty: Penalty = 0.0,
    anchors: AnchorRule = "exact",
    threshold: Threshold = 0.95,
) -> Floats:
    """Episode credit plus step credit on the distance to success in the graph of states that the group visited."""
    node, size = anchor_groups(r, anchors, threshold)
    here, there = distances(r, node, size)
    exponent = there - here + 1 if relative else there
    score = scale * np.power(gamma, exponent) - invalid_penalty * ~r.valid
    step = step_credit(r, score, node, size, norm=norm)
    return episode_weight * episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty) + omega * step


def distances(r: Rollouts, node: Ints, size: int) -> tuple[Floats, Floats]:
    """For each turn, the distance to success from its initial state and from its next state."""
    target, success, nodes = _targets(r, node, size)
    distance = _distance_to(success, node, target, nodes)
    group = np.zeros(nodes, np.int64)
    group[target], group[node] = r.group, r.group
    farthest = np.zeros(len(r.group_labels))
    reached = np.isfinite(distance)
    states = np.flatnonzero(reached[: success[0]])
    np.maximum.at(farthest, group[states], distance[states])
    distance = np.where(reached, distance, farthest[group] + 1)
    return distance[node], distance[target]


def _targets(r: Rollouts, node: Ints, size: int) -> tuple[Ints, Ints, int]:
    """The node that each turn leads to, the success node of each group, and the number of nodes."""
    trajectories, groups = len(r.trajectory_labels), len(r.group_labels)
    if r.success is None:  # a return above 0 by more than rounding (0.1 + 0.2 − 0.3 is not)
        won = episode_returns(r) > NOISE * segment_sum(np.abs(r.reward), r.trajectory, trajectories)
    else:
        won = segment_first(r.success, r.trajectory, trajectories).astype(np.bool_)
    last = np.concatenate([r.trajectory[:-1] != r.trajectory[1:], [True]])
    after = np.concatenate([node[1:], [0]])
    dead_end = size + r.trajectory
    target = np.where(last, _final_nodes(r, node, dead_end), after)
    success = size + trajectories + np.arange(groups)
    target = np.where(last & won[r.trajectory], success[r.group], target)
    return target, success, size + trajectories + groups


def _final_nodes(r: Rollouts, node: Ints, dead_end: Ints) -> Ints:
    """The node after the last turn of a failed trajectory: a node of its group if that state was visited, else a dead end."""
    if r.next_anchor is None:
        return dead_end
    width = len(r.anchor_table)
    visited, code = dense(r.group * width + r.anchor)
    node_of = np.empty(len(visited), np.int64)
    node_of[code] = node
    wanted = r.group * width + r.next_anchor
    place = np.minimum(np.searchsorted(visited, wanted), len(visited) - 1)
    known = (r.next_anchor != UNKNOWN) & (visited[place] == wanted)
    return np.where(known, node_of[place], dead_end)


def _distance_to(goals: Ints, source: Ints, target: Ints, nodes: int) -> Floats:
    """Breadth-first search against the edges, all groups at once: each edge is visited once, with one vectorised step per distance."""
    order = np.argsort(target, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=nodes))])
    distance = np.full(nodes, np.inf)
    distance[goals] = 0
    frontier, steps = goals, 0
    while len(frontier):
        steps += 1
        reached = np.unique(source[order[ragged(offsets, frontier)]])
        frontier = reached[np.isinf(distance[reached])]
        distance[frontier] = steps
    return distance
