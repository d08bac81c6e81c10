"""MICA: what a turn gained for a potential, and what was gained from it on, each normalised among peers and added.

    r_k = Φ(after turn k) − Φ(before it)                 column turn.potential_gain
    A_k = z(r_k) + mix · z(Σ_{j ≥ k} γ^{j−k} r_j)         z: (x − mean) / (std + 1e-6) over the peers

Peers are all turns of the group, or its turns with the same number. The signal is in `turnwise/methods/mica.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import TurnDiscount, pair, reverse_scan, standardise
from turnwise.data.rollouts import Floats, Rollouts

GAIN = "turn.potential_gain"
Mix = Annotated[float, Help("weight of the gains to come next to the turn's own", low=0)]
Peers = Annotated[Literal["group", "depth"], Help("compare with all turns of the group, or with those of the same number")]


@register("mica", paper="MICA, arXiv 2603.06194", needs=("group.peers", GAIN))
def mica(r: Rollouts, *, gamma: TurnDiscount = 0.95, mix: Mix = 1.0, peers: Peers = "group") -> Floats:
    """The gain in potential of a turn plus the discounted gains from it on, normalised separately among peers."""
    gain = np.asarray(r.column(GAIN), np.float64)
    segment, size = (r.group, len(r.group_labels)) if peers == "group" else pair(r.group, r.t)
    to_come = reverse_scan(gain, gamma, r.trajectory)
    return standardise(gain, segment, size, "std") + mix * standardise(to_come, segment, size, "std")
