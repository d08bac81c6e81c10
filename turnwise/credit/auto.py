"""Auto: the credit that has done best where batches looked like this one.

A batch is described by how often states repeat, how long attempts are, and how often attempts of a group end differently, or succeed.
`auto.json` has these numbers for the regimes of an arena, with the score of each credit there, which is taken relative to the regime's
mean. Each regime counts by exp(−d²/2), d its distance in those numbers, and the credit with the best weighted score is taken. The choice
follows from the batch alone, so a resumed run chooses as an uninterrupted one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.credit.registry import algorithms, compute, register
from turnwise.credit.segments import Norm, Penalty, TurnDiscount, episode_returns, is_constant, pair, segment_count, trajectory_groups
from turnwise.data.rollouts import Floats, Rollouts

DATA = Path(__file__).with_name("auto.json")
FEATURES = ("repetition", "log_turns", "contrast", "success")
WIDTHS = np.array([0.2, 0.5, 0.25, 0.25])  # units of distance; set by hand, before there were scores


@register("auto", paper="Turnwise: docs/results/arena.md", needs=("group.peers",))
def auto(r: Rollouts, *, gamma: TurnDiscount = 0.95, norm: Norm = "std", invalid_penalty: Penalty = 0.0) -> Floats:
    """The credit that did best in the arena's regimes that are most like the batch."""
    name = choose(r)
    given = {"gamma": gamma, "norm": norm, "invalid_penalty": invalid_penalty}
    options = {k: v for k, v in given.items() if k in algorithms[name].options and not (k == "gamma" and name == "graph_gpo")}
    return compute(name, r, **options).astype(np.float64)


def choose(r: Rollouts) -> str:
    """The name of the credit for this batch."""
    return best(features(r), regimes())


def features(r: Rollouts) -> Floats:
    """What a batch looks like, in the order of FEATURES."""
    r = r.in_order()
    state, states = pair(r.group, r.anchor)
    visit, visits = pair(r.trajectory, state)
    visited = np.zeros(visits, np.int64)
    visited[visit] = state
    attempts = segment_count(visited, states)
    turns = segment_count(r.trajectory, len(r.trajectory_labels))
    returns = episode_returns(r)
    live = ~is_constant(returns, trajectory_groups(r), len(r.group_labels))
    won = returns > 0 if r.success is None else np.maximum.reduceat(r.success, np.cumsum(turns) - turns) > 0
    return np.array([np.mean(attempts[state] > 1), np.log(turns.mean()), live.mean(), won.mean()], np.float64)


@cache
def regimes() -> dict[str, dict[str, Any]]:
    """What `auto.json` knows: by regime its features and the score of each credit."""
    known: dict[str, dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))["regimes"]
    return known


def best(batch: Floats, known: Mapping[str, Mapping[str, Any]]) -> str:
    """The credit with the best score over these regimes, weighted by their nearness to a batch; of equal ones the first."""
    points = np.array([regime["features"] for regime in known.values()])
    distance = (((points - batch) / WIDTHS) ** 2).sum(1)
    weight = np.exp(-0.5 * (distance - distance.min()))
    names = sorted(set.intersection(*(set(regime["scores"]) for regime in known.values())))
    scores = np.array([[regime["scores"][name] for name in names] for regime in known.values()])
    chosen: str = names[int(np.argmax(weight @ (scores - scores.mean(1, keepdims=True))))]
    return chosen


def left_out(known: Mapping[str, Mapping[str, Any]], truth: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[str, float]]:
    """By regime: the credit that other families choose for it, and its regret against the best there, by the scores of other runs."""
    result = {}
    for name, regime in known.items():
        others = {other: values for other, values in known.items() if values["family"] != regime["family"]}
        chosen = best(np.asarray(regime["features"]), others)
        result[name] = chosen, max(truth[name][credit] for credit in regime["scores"]) - truth[name][chosen]
    return result
