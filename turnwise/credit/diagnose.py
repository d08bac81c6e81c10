"""Statistics of a batch for step-level credit: the two levels turn by turn, and summaries of them.

`explain` shows where each turn's credit comes from; `diagnose` summarises it in the numbers that every training run logs. Both take
GiGPO's options, with the same meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.credit.anchor_groups import anchor_groups
from turnwise.credit.auto import choose
from turnwise.credit.gigpo import step_credit
from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import algorithms, parts
from turnwise.credit.segments import discounted_returns, episode_returns, is_constant, pair, segment_count, trajectory_groups
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Rollouts
from turnwise.util.errors import TurnwiseError

OF_STATES = ("gamma", "anchors", "threshold")  # what a return and a state are
OF_STEPS = ("step_credit_share", "step_to_episode")
BINS = (1, 2, 4, 8, 16, 32, 64)  # lower edges of the histogram of anchor-group sizes

EXPLAINED = "gigpo"  # whose options `explain` and `diagnose` take: what a return and a state are


def explain(rollouts: Rollouts, **options: Any) -> dict[str, NDArray[Any]]:
    """For each turn, in the order of the rows: `step_return` (discounted, without penalty), `episode` and `step` credit before weighting,
    `anchor_group` (a dense id) and `anchor_size` (turns in that group)."""
    chosen = algorithms[EXPLAINED].bind(options, algorithms.kind)
    r = rollouts.in_order()
    segment, size = anchor_groups(r, chosen["anchors"], chosen["threshold"])
    returns = discounted_returns(r, chosen["gamma"])
    score = returns - chosen["invalid_penalty"] * ~r.valid
    shared = {name: chosen[name] for name in ("norm", "weighting", "invalid_penalty")}
    columns = {
        "step_return": returns,
        "episode": episode_credit(r, **shared),
        "step": step_credit(r, score, segment, size, norm=chosen["norm"], once=chosen["once"]),
        "anchor_group": segment,
        "anchor_size": segment_count(segment, size)[segment],
    }
    return {name: column[rollouts.positions] for name, column in columns.items()}


def diagnose(rollouts: Rollouts, **options: Any) -> dict[str, Any]:
    """Statistics of the anchor groups and of the two levels of credit. Shares are of turns unless the name says groups.

    anchor_size_histogram: "1", "2-3", "4-7" … → share of turns in anchor groups of that size. singleton_share: turns whose state no other
    turn of the group shares. one_trajectory_share: turns in anchor groups that contain only one, looping trajectory.
    step_credit_share: turns with non-zero step credit. step_to_episode: mean |step| / mean |episode| (0 if there is no episode
    credit). constant_group_share: task groups whose trajectories all have the same return.
    """
    r = rollouts.in_order()
    why = explain(r, **options)
    segment = why["anchor_group"]
    counts = segment_count(segment, int(segment.max()) + 1)
    visit, visits = pair(r.trajectory, segment)
    group_of_visit = np.empty(visits, np.int64)
    group_of_visit[visit] = segment
    visitors = segment_count(group_of_visit, len(counts))  # the different trajectories in each anchor group
    step, episode = np.abs(why["step"]), np.abs(why["episode"])
    constant = is_constant(episode_returns(r), trajectory_groups(r), len(r.group_labels))
    return {
        "anchor_groups": len(counts),
        "anchor_size_mean": float(counts.mean()),
        "anchor_size_max": int(counts.max()),
        "anchor_size_histogram": _histogram(counts[segment]),
        "singleton_share": float((counts[segment] == 1).mean()),
        "singleton_group_share": float((counts == 1).mean()),
        "one_trajectory_share": float(((visitors == 1) & (counts > 1))[segment].mean()),
        "step_credit_share": float((step != 0).mean()),
        "step_to_episode": float(step.mean() / episode.mean()) if episode.any() else 0.0,
        "constant_group_share": float(constant.mean()),
        "invalid_share": float((~r.valid).mean()),
    }


def explaining(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an algorithm's options that `explain` and `diagnose` take and that mean the same there: what a return is, which turns start
    from the same state, how credit is normalised. Of an algorithm that is not known here, those that it probably shares."""
    explained, own = algorithms[EXPLAINED], algorithms.known(name)
    try:
        if own is None:
            return {key: explained.options[key].check(value, name) for key, value in options.items() if key in OF_STATES}
        bound = own.bind(options, algorithms.kind)
    except TurnwiseError:  # another algorithm may mean something else by the same name
        return {}
    plain = {key: replace(option, default=None) for key, option in explained.options.items()}
    return {key: bound[key] for key, option in own.options.items() if plain.get(key) == replace(option, default=None)}


def explained_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that `explain` takes, all of them: an algorithm's own where they mean the same, else the usual ones."""
    return algorithms["gigpo"].bind(explaining(name, options), algorithms.kind)


def observe(name: str, options: Mapping[str, Any], rollouts: Rollouts, values: Any) -> dict[str, Any]:
    """What a run logs of its credit: `sizes` of its own, and what `diagnose` says with the algorithm's own options. Numbers about step
    credit are left out where the algorithm has none."""
    result = diagnose(rollouts, **explaining(name, options)) | sizes(values)
    if name == "auto":
        result["chosen"] = {choose(rollouts): 1.0}
    return result if "step" in parts(name) else {key: value for key, value in result.items() if key not in OF_STEPS}


def sizes(credit: Any) -> dict[str, float]:
    """Statistics of an algorithm's credit over its turns (or tokens): `size`, the mean |credit|; `zero_share` and `positive_share`, the
    shares with credit 0 and above 0."""
    values = np.asarray(credit, np.float64)
    count = max(len(values), 1)
    return {
        "size": float(np.abs(values).sum() / count),
        "zero_share": float((values == 0).sum() / count),
        "positive_share": float((values > 0).sum() / count),
    }


def _histogram(size_of_turn: Ints) -> dict[str, float]:
    names = [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(BINS)] + [f"{BINS[-1]}+"]
    shares = np.histogram(size_of_turn, bins=[*BINS, np.iinfo(np.int64).max])[0] / len(size_of_turn)
    return dict(zip(names, shares.tolist(), strict=True))
