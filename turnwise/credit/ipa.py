"""IPA's credit: what a turn is followed by, discounted per turn. All tokens of a turn, the chunk between two interactions, share it.

    G_k = r_k + γ · G_{k+1}          with a reward only at the end: γ^(turns to the end) · R

No baseline is subtracted. `neutral` is taken from the last reward, so that a failure with a return of 0 has a negative G.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import TurnDiscount, reverse_scan
from turnwise.data.rollouts import Floats, Rollouts

Neutral = Annotated[float, Help("the return that teaches nothing; it is subtracted at the end")]


@register("ipa", paper="IPA, arXiv 2512.24873")
def ipa(r: Rollouts, *, gamma: TurnDiscount = 0.95, neutral: Neutral = 0.0) -> Floats:
    """The discounted return from each turn on, minus a constant at the end; no baseline."""
    last = np.append(r.trajectory[:-1] != r.trajectory[1:], True)
    return reverse_scan(r.reward - neutral * last, gamma, r.trajectory)
