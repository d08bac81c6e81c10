"""A²TGPO: information gains compared at the same depth, kept at one size over depths, and a clip range per turn.

z_k = (gain_k − mean) / (population std + 1e-6)      over the turns with index k of the group
D_k = Σ_{j=k}^{n} γ^{j−k} z_j / √(n − k + 1)         n: the trajectory's last turn with a gain
A_k = α · D_k + O                                    O: the outcome as in GRPO; the last turn has no gain, and gets O alone
c_k = 1 + β · (2 σ(z_k) − 1)                         column turn.clip_scale, for the objective a2tgpo; 1 without a gain
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.grpo import episode_credit
from turnwise.credit.igpo import GAIN, last_turns
from turnwise.credit.registry import register
from turnwise.credit.segments import TurnDiscount, pair, reverse_scan, standardise
from turnwise.data.rollouts import Rollouts


@register("a2tgpo", paper="A²TGPO, arXiv 2605.06200", needs=("group.peers", GAIN), gives=("turn.clip_scale",))
def a2tgpo(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 1.0,
    alpha: Annotated[float, Help("weight of the gains next to the outcome", low=0)] = 0.3,
    beta: Annotated[float, Help("how far a gain widens or narrows the clip range of its turn", low=0, high=1)] = 0.3,
) -> dict[str, Any]:
    """Information gains compared with those of the same depth, summed and rescaled, plus the outcome; gives each turn its clip range."""
    gain = np.asarray(r.column(GAIN), np.float64)
    gained = ~last_turns(r) & ~np.isnan(gain)
    z = np.zeros(len(r))
    depth, depths = pair(r.group[gained], r.t[gained])
    z[gained] = standardise(gain[gained], depth, depths, "std", ddof=0)
    left = reverse_scan(gained.astype(np.float64), 1.0, r.trajectory)  # turns with a gain from here on
    ahead = reverse_scan(z, gamma, r.trajectory) / np.sqrt(np.maximum(left, 1.0))
    outcome = episode_credit(r, norm="std", weighting="trajectory", invalid_penalty=0.0)
    return {"turn.advantage": alpha * ahead + outcome, "turn.clip_scale": 1.0 + beta * np.tanh(z / 2)}  # 2σ(z) − 1 = tanh(z / 2)
