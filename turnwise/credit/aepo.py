"""AEPO's entropy-aware advantage: GRPO's, larger on tokens that were drawn from wide distributions.

    A(token) = A(τ) · (1 + a · z),   z = (H − mean H) / std H        H: the token's entropy, as the engine reported it

Mean and standard deviation are over all tokens of the batch that are learned from. Where all entropies are equal, z is 0.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.grpo import episode_credit
from turnwise.credit.registry import register
from turnwise.credit.segments import Norm, Penalty, Weighting
from turnwise.data.rollouts import Floats, Rollouts, alike


@register("aepo", paper="Dong et al. 2025, AEPO, arXiv 2510.14545", needs=("token.entropy", "group.peers"))
def aepo(
    r: Rollouts,
    *,
    strength: Annotated[float, Help("how much an entropy one standard deviation above the mean adds to the advantage", low=0)] = 0.2,
    norm: Norm = "std",
    weighting: Weighting = "trajectory",
    invalid_penalty: Penalty = 0.0,
) -> dict[str, Any]:
    """GRPO's credit per token, scaled by the token's entropy relative to the batch."""
    of_turns = episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)
    of_token = np.repeat(np.arange(len(r)), np.diff(r.token_offsets))
    counts = np.ones(len(of_token), np.bool_) if not r.has("turn.mask") else r.column("turn.mask")[of_token]
    counts = counts & r.column("token.mask") if r.has("token.mask") else counts
    return {"token.advantage": of_turns[of_token] * (1 + strength * deviations(r.column("token.entropy"), counts))}


def deviations(values: Any, counts: Any) -> Floats:
    """Values minus their mean, in sample standard deviations; the statistics are of those that count. 0 if these are all equal."""
    exact = np.asarray(values, np.float64)
    known = exact[counts]
    if len(known) < 2 or alike(known):
        return np.zeros(len(exact))
    found: Floats = (exact - known.mean()) / known.std(ddof=1)
    return found
