"""Bi-level GAE: first advantages of turns, then advantages of tokens inside each turn.

    turns:   δ_k = r_k + γ · V(e_{k+1}) − V(e_k),   A(e_k) = δ_k + γλ · A(e_{k+1})       e_k: the last token of turn k
    tokens:  GAE inside the turn with γ_token, λ_token, where the turn's only reward is A(e_k) + V(e_k), on its last token

Credit thus crosses turns at the turn discount, and tokens at the token discount. The ends of turns come from the column `tokens`; finding
them by non-zero rewards, as the public code does, would merge every turn without a reward into the next. What the critic learns is this
advantage, before normalisation, plus its value: the turn's discount never acts between tokens.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.gae import scan_advantages, token_rows, whitened
from turnwise.credit.registry import PerToken, register
from turnwise.credit.segments import Norm, Penalty, TurnDiscount
from turnwise.data.rollouts import Rollouts
from turnwise.util.errors import TurnwiseError


@register("bi_level_gae", paper="Wang et al. 2025, RAGEN, arXiv 2504.20073", needs=("token.value",))
def bi_level_gae(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 0.95,
    lam: Annotated[float, Help("λ over turns", low=0, high=1)] = 1.0,
    token_gamma: Annotated[float, Help("discount per token inside a turn", low=0, high=1)] = 1.0,
    token_lam: Annotated[float, Help("λ over the tokens of a turn", low=0, high=1)] = 1.0,
    norm: Norm = "std",
    invalid_penalty: Penalty = 0.0,
) -> PerToken:
    """Per-token credit from a critic's token values: GAE over turns first, then over the tokens inside each turn."""
    value = r.need("token_value", "bi_level_gae")
    tokens = r.need("tokens", "bi_level_gae")
    if (tokens == 0).any():
        row = int((tokens == 0).argmax())
        raise TurnwiseError(f"column 'tokens', row {row} (sorted): bi_level_gae needs at least one token in every turn")
    last = r.token_offsets[1:] - 1
    turn_value = value[last]
    turn_advantage = scan_advantages(r.reward - invalid_penalty * ~r.valid, turn_value, r.trajectory, gamma, lam)
    reward = np.zeros(len(value))
    reward[last] = turn_advantage + turn_value
    advantage = scan_advantages(reward, value, token_rows(r), token_gamma, token_lam)
    return PerToken(whitened(advantage, norm), targets=advantage + value)
