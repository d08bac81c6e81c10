"""VinePPO (B23): the value of an intermediate state is the mean return of fresh rollouts from it."""

from __future__ import annotations

from collections.abc import Sequence

from .forms import mean


def state_values(rewards: Sequence[float], returns: Sequence[Sequence[float]], gamma: float = 1.0) -> list[float]:
    """V(s_0), ..., V(s_K) of one trajectory with K turns: the mean of returns[k], the returns of fresh rollouts (9) from before turn k.

    V(s_K) = 0 (the end). Empty returns[k] only in the tail: from the end backwards V_k = r_k + gamma V_{k+1} until the first estimate.
    """
    k = len(rewards)
    values = [mean(r) if r else None for r in returns] + [0.0]
    for i in range(k - 1, -1, -1):
        if values[i] is not None:
            break
        values[i] = rewards[i] + gamma * (values[i + 1] or 0.0)
    if any(v is None for v in values):
        raise ValueError("a state before an estimated one has no rollouts")
    return [v for v in values if v is not None]


def advantages(rewards: Sequence[float], returns: Sequence[Sequence[float]], gamma: float = 1.0) -> list[float]:
    """A_k = r_k + gamma V(s_{k+1}) - V(s_k); the same for all tokens of the turn; no whitening. PPO clip 0.2 follows."""
    v = state_values(rewards, returns, gamma)
    return [rewards[k] + gamma * v[k + 1] - v[k] for k in range(len(rewards))]
