"""Turn-level PPO (C14): generalised advantage estimation over turns, one value per turn."""

from __future__ import annotations

from collections.abc import Sequence

from .forms import whitened


def raw_advantages(
    rewards: Sequence[float], values: Sequence[float], gamma: float = 1.0, lam: float = 1.0, last: float = 0.0
) -> list[float]:
    """One trajectory: delta_k = r_k + gamma V_{k+1} - V_k, A_k = delta_k + gamma lam A_{k+1}. `last`: value after the last turn."""
    result = [0.0] * len(rewards)
    carry, following = 0.0, last
    for k in range(len(rewards) - 1, -1, -1):
        carry = rewards[k] + gamma * following - values[k] + gamma * lam * carry
        following = values[k]
        result[k] = carry
    return result


def targets(rewards: Sequence[float], values: Sequence[float], gamma: float = 1.0, lam: float = 1.0, last: float = 0.0) -> list[float]:
    """What the value head is trained on at the turn's last prompt token: A_k + V_k, before whitening."""
    return [a + v for a, v in zip(raw_advantages(rewards, values, gamma, lam, last), values, strict=True)]


def advantages(
    rewards: Sequence[Sequence[float]], values: Sequence[Sequence[float]], gamma: float = 1.0, lam: float = 1.0, whiten: bool = True
) -> list[list[float]]:
    """Per trajectory and turn; whitened over ALL turns of the batch (each turn counts once, not each token). Fewer than two turns: 0."""
    raw = [raw_advantages(r, v, gamma, lam) for r, v in zip(rewards, values, strict=True)]
    if not whiten:
        return raw
    flat = iter(whitened([a for row in raw for a in row]))
    return [[next(flat) for _ in row] for row in raw]
