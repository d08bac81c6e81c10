"""InfoPO (A4): a turn is informative if its observation changes what the agent does next; used where outcomes do not discriminate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .forms import by_group, deviation, sigmoid


def token_rewards(gains: Sequence[float], lengths: Sequence[int]) -> list[list[float]]:
    """One trajectory: I_k/|a_k| on each of the |a_k| = lengths[k] tokens of turn k; zeros for the last turn (gains has one entry less)."""
    return [[(gains[k] / n if k < len(lengths) - 1 else 0.0) for _ in range(n)] for k, n in enumerate(lengths)]


def intrinsic(rewards: Sequence[Sequence[Sequence[float]]], groups: Sequence[Any], eps: float = 1e-6) -> list[list[list[float]]]:
    """z-scores (std1 + eps) over all NON-ZERO token rewards of the group; zeros stay 0. rewards[i][k][t]. One value or equal values: 0."""
    flat = [(g, x) for row, g in zip(rewards, groups, strict=True) for turn in row for x in turn]
    values = by_group([x for _, x in flat], [(g, x != 0) for g, x in flat], eps=eps)
    it = iter([z if x != 0 else 0.0 for (_, x), z in zip(flat, values, strict=True)])
    return [[[next(it) for _ in turn] for turn in row] for row in rewards]


def gates(outcomes: Sequence[float], groups: Sequence[Any], temperature: float = 0.05) -> list[float]:
    """Per trajectory: sigm(-sigma_g / temperature), sigma_g the std1 of the group's outcomes: 0.5 where all are equal."""
    members = {g: [o for o, h in zip(outcomes, groups, strict=True) if h == g] for g in groups}
    return [sigmoid(-deviation(members[g], 1) / temperature) for g in groups]


def scale(outer: Sequence[float], inner: Sequence[float]) -> float:
    """min(1, max(std(A_out), 1)/std(A_int)), both std1 over all tokens of the batch; 1 where A_int has no spread."""
    spread = deviation(inner, 1)
    return min(1.0, max(deviation(outer, 1), 1.0) / spread) if spread > 0 else 1.0


def advantages(
    gains: Sequence[Sequence[float]],
    lengths: Sequence[Sequence[int]],
    outcomes: Sequence[float],
    groups: Sequence[Any],
    beta: float = 0.5,
    temperature: float = 0.05,
    eps: float = 1e-6,
) -> list[list[list[float]]]:
    """A_out + beta gate scale A_int per turn and token. gains[i]: I_k of all turns but the last; lengths[i]: tokens per turn."""
    rewards = [token_rewards(g, n) for g, n in zip(gains, lengths, strict=True)]
    inner = intrinsic(rewards, groups, eps)
    outer = by_group(outcomes, groups, eps=eps)
    factor = scale(
        [outer[i] for i, row in enumerate(inner) for turn in row for _ in turn], [x for row in inner for turn in row for x in turn]
    )
    gate = gates(outcomes, groups, temperature)
    return [[[outer[i] + beta * gate[i] * factor * x for x in turn] for turn in row] for i, row in enumerate(inner)]
