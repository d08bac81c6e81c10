"""GAE: generalised advantage estimation with a critic's values, over turns or over tokens. What PPO uses.

    δ_k = r_k + γ · V_{k+1} − V_k        A_k = δ_k + γλ · A_{k+1}

level="turn": one step is one turn; V_k is the column `value` (the critic before the response), the next value is the next turn's: credit
flows across turns. level="token": one step is one response token; V is the column `token_value`, a turn's reward is on its last
token, and the next value of a turn's last token is that of the next turn's first token, so that observations between them do not count as
steps. After a trajectory's end the value is 0. A turn without tokens passes its reward on to the trajectory's token before it, or, if there
is none, to the one after it. The penalty of an invalid turn is part of its reward here: the critic learns to predict it.

Bi-level GAE: first advantages of turns, then advantages of tokens inside each turn.

    turns:   δ_k = r_k + γ · V(e_{k+1}) − V(e_k),   A(e_k) = δ_k + γλ · A(e_{k+1})       e_k: the last token of turn k
    tokens:  GAE inside the turn with γ_token, λ_token, where the turn's only reward is A(e_k) + V(e_k), on its last token

Credit thus crosses turns at the turn discount, and tokens at the token discount. The ends of turns come from the column `tokens`; finding
them by non-zero rewards, as the public code does, would merge every turn without a reward into the next. What the critic learns is this
advantage, before normalisation, plus its value: the turn's discount never acts between tokens.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import PerToken, PerTurn, register
from turnwise.credit.segments import Norm, Penalty, TurnDiscount, reverse_scan, segment_sum, standardise
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.util.errors import TurnwiseError


@register("gae", paper="Schulman et al. 2016, arXiv 1506.02438; PPO: Schulman et al. 2017, arXiv 1707.06347", needs=("{level}.value",))
def gae(
    r: Rollouts,
    *,
    level: Annotated[Literal["turn", "token"], Help("what one step is: a turn (column `value`) or a token (`token_value`)")] = "turn",
    gamma: Annotated[float, Help("discount per {level}; `level` says what a step is", low=0, high=1)] = 1.0,
    lam: Annotated[float, Help("λ: 0 trusts the critic, 1 the sampled return", low=0, high=1)] = 0.95,
    norm: Norm = "std",
    invalid_penalty: Penalty = 0.0,
) -> PerTurn | PerToken:
    """Advantages from a critic's values; norm=std whitens them over the whole batch (turns or tokens)."""
    advantage = gae_advantages(r, level=level, gamma=gamma, lam=lam, invalid_penalty=invalid_penalty)
    if level == "token":
        return PerToken(whitened(advantage, norm), targets=advantage + r.need("token_value", "gae with level=token"))
    return PerTurn(whitened(advantage, norm), targets=advantage + r.need("value", "gae with level=turn"))


def whitened(advantage: Floats, norm: str) -> Floats:
    """With norm "std": minus the batch's mean, divided by its standard deviation."""
    return standardise(advantage, np.zeros(len(advantage), np.int64), 1, norm) if norm == "std" else advantage


def gae_advantages(r: Rollouts, *, level: str, gamma: float, lam: float, invalid_penalty: float = 0.0) -> Floats:
    """Advantages before whitening. Adding the values gives the critic's targets."""
    reward = r.reward - invalid_penalty * ~r.valid
    if level == "turn":
        return scan_advantages(reward, r.need("value", "gae with level=turn"), r.trajectory, gamma, lam)
    value = r.need("token_value", "gae with level=token")
    owner = token_rows(r)
    # each turn's reward on its last token; for a turn without tokens, on the nearest token of the trajectory
    last = r.token_offsets[1:] - 1
    if (r.need("tokens", "gae with level=token") == 0).any():
        last = _nearest_token(r, last, owner)
    return scan_advantages(segment_sum(reward, last, len(owner)), value, r.trajectory[owner], gamma, lam)


def scan_advantages(reward: Floats, value: Floats, segment: Ints, gamma: float, lam: float) -> Floats:
    """GAE inside each run of equal `segment` values."""
    gain = np.zeros(len(value))  # γ V of the next step, then δ
    np.multiply(value[1:], gamma, out=gain[:-1])
    gain[:-1][segment[:-1] != segment[1:]] = 0.0
    gain += reward
    gain -= value
    return reverse_scan(gain, gamma * lam, segment)


def token_rows(r: Rollouts) -> Ints:
    """The row of each token."""
    return np.repeat(np.arange(len(r)), np.diff(r.token_offsets))


def _nearest_token(r: Rollouts, last: Ints, owner: Ints) -> Ints:
    """For turns without tokens: the previous token if it belongs to the same trajectory, else the next one."""
    if len(owner) == 0:
        raise TurnwiseError("column 'tokens': no turn has a token, so there is nothing to give per-token credit to")
    before, after = np.clip(last, 0, len(owner) - 1), np.clip(last + 1, 0, len(owner) - 1)
    same = (last >= 0) & (r.trajectory[owner[before]] == r.trajectory)
    place = np.where(same, before, after)
    lost = r.trajectory[owner[place]] != r.trajectory
    if lost.any():
        label = r.trajectory_labels[r.trajectory[lost.argmax()]].item()
        raise TurnwiseError(f"column 'tokens': trajectory {label!r} has no token at all, so there is nothing to give per-token credit to")
    return place


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
