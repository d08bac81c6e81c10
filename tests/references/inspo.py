"""INSPO (A20): a population of instructions with running mean rewards. Only what is public: the means and dropping the low performers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .forms import mean


def means(rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Running mean reward per instruction over all rollouts so far; 0 for an instruction without rollouts."""
    return {name: mean(values) if values else 0.0 for name, values in rewards.items()}


def updated(before: float, count: int, rewards: Sequence[float]) -> tuple[float, int]:
    """(mean, count) after further rewards, one at a time: m + (r - m)/n."""
    for r in rewards:
        count += 1
        before += (r - before) / count
    return before, count


def kept(rewards: Mapping[str, Sequence[float]], size: int, least: int = 1) -> list[str]:
    """Instructions that stay, in their order: all with fewer than `least` rollouts, and of the others the best by mean until `size` are
    kept.

    Ties: the earlier one stays. Interval, size and the trial period are not published.
    """
    tried = [name for name in rewards if len(rewards[name]) >= least]
    fresh = [name for name in rewards if len(rewards[name]) < least]
    value = means(rewards)
    best = sorted(tried, key=lambda name: -value[name])[: max(0, size - len(fresh))]
    return [name for name in rewards if name in fresh or name in best]
