"""IGPO: Information Gain-based Policy Optimization. A turn is judged by what it found out, the last turn by the outcome.

    r_k = p_{k+1} − p_k          p_k: the policy's probability of the gold answer before turn k (column turn.information_gain)
    r_K = R                      the last turn: the outcome, the trajectory's return
    r~  = (r − mean r) / (std r + 1e-6)      over the group: all of its turn rewards ("joint"), or gains and outcomes apart ("separate")
    A_k = Σ_{j ≥ k} γ^{j−k} r~_j

A turn whose gain is not known (NaN: its task has no gold answer) has no reward and is in no mean. With no gold answer at all this is
GRPO, discounted by γ per turn.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import TurnDiscount, episode_returns, reverse_scan, standardise
from turnwise.data.rollouts import Bools, Floats, Rollouts

GAIN = "turn.information_gain"
Pooling = Annotated[Literal["joint", "separate"], Help("one z-score over gains and outcomes of a group, or one for each")]


@register("igpo", paper="Wang et al. 2025, Information Gain-based Policy Optimization, arXiv 2510.14967", needs=("group.peers", GAIN))
def igpo(r: Rollouts, *, gamma: TurnDiscount = 1.0, normalise: Pooling = "joint") -> Floats:
    """Discounted sum of normalised turn rewards: information gains, and at the end the outcome."""
    last = last_turns(r)
    gain = np.asarray(r.column(GAIN), np.float64)
    reward = np.where(last, episode_returns(r)[r.trajectory], gain)
    kinds = [last | ~np.isnan(gain)] if normalise == "joint" else [last, ~last & ~np.isnan(gain)]
    scaled = np.zeros(len(r))
    for chosen in kinds:
        scaled[chosen] = standardise(reward[chosen], r.group[chosen], len(r.group_labels), "std")
    return reverse_scan(scaled, gamma, r.trajectory)


def last_turns(r: Rollouts) -> Bools:
    """True for the last turn of each trajectory, of rollouts that are in order."""
    last: Bools = np.append(r.trajectory[:-1] != r.trajectory[1:], True)
    return last
