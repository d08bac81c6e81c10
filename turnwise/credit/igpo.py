"""IGPO: Information Gain-based Policy Optimization. A turn is judged by what it found out, the last turn by the outcome.

    r_k = w_gain · gain_k        what turn k adds to the (log-)probability of the gold answer (column turn.information_gain)
    r_K = w_outcome · R          the last turn: the outcome, the trajectory's return
    r~  = (r − mean r) / (s + 1e-6)      over the group: all of its turn rewards ("joint"), or gains and outcomes apart ("separate")
    A_k = r~_k + γ · A_next              next: the next turn with a reward; a turn without one has A_next itself

s is sqrt(var + 1e-8) of the population. The weights are 1, or the columns of the signal `information_curriculum`. A turn whose gain is not
known (NaN: its task has no gold answer) has no reward and is in no mean; with `zeros` "skip" neither has one whose gain is exactly 0.

`version` "first" is the formula before the authors' rewrite of February 2026: s is the sample deviation, every known gain counts, and the
discount is per turn, with or without a reward. With no gold answer at all it is GRPO, discounted by γ per turn.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import EPSILON, TurnDiscount, deviation, episode_returns, reverse_scan, standardise
from turnwise.data.rollouts import Bools, Floats, Rollouts

GAIN, GAIN_WEIGHT, OUTCOME_WEIGHT = "turn.information_gain", "trajectory.gain_weight", "trajectory.outcome_weight"
Pooling = Annotated[Literal["joint", "separate"], Help("one z-score over gains and outcomes of a group, or one for each")]
Version = Annotated[Literal["rewrite", "first"], Help("the authors' rewrite of February 2026, or the formula before it")]
Zeros = Annotated[Literal["count", "skip"], Help("turns whose gain is exactly 0 have a reward of 0, or none")]


@register("igpo", paper="Wang et al. 2025, Information Gain-based Policy Optimization, arXiv 2510.14967", needs=("group.peers", GAIN))
def igpo(
    r: Rollouts, *, gamma: TurnDiscount = 1.0, normalise: Pooling = "joint", version: Version = "rewrite", zeros: Zeros = "count"
) -> Floats:
    """Discounted sum of normalised turn rewards: information gains, and at the end the outcome."""
    last, first_version = last_turns(r), version == "first"
    gain = np.asarray(r.column(GAIN), np.float64)
    counted = last | ~(np.isnan(gain) | ((gain == 0) & (zeros == "skip")))
    reward = np.where(last, episode_returns(r)[r.trajectory] * weights(r, OUTCOME_WEIGHT), gain * weights(r, GAIN_WEIGHT))
    scaled = np.zeros(len(r))
    for chosen in [counted] if normalise == "joint" else [last, counted & ~last]:
        values, group, size = reward[chosen], r.group[chosen], len(r.group_labels)
        if first_version:
            scaled[chosen] = standardise(values, group, size, "std")
        else:
            spread = np.sqrt(deviation(values, group, size, ddof=0) ** 2 + 1e-8) + EPSILON
            scaled[chosen] = standardise(values, group, size, "none") / spread[group]
    return reverse_scan(scaled, np.where(counted | first_version, gamma, 1.0), r.trajectory)


def weights(r: Rollouts, name: str) -> Floats | float:
    """The weight of each turn's reward: 1 unless a signal has given another."""
    return np.asarray(r.column(name), np.float64)[r.trajectory] if r.has(name) else 1.0


def last_turns(r: Rollouts) -> Bools:
    """True for the last turn of each trajectory, of rollouts that are in order."""
    last: Bools = np.append(r.trajectory[:-1] != r.trajectory[1:], True)
    return last
