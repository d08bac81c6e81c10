"""ARPO (A1): branch a rollout where its entropy rose after an observation; advantages of shared turns are averaged.

The authors' code (RUC-NLPIR/ARPO at a95cd089) trains the soft form, GRPO over all rollouts; it has no function for the hard one, which is
written from notes on the paper. A second reading of the same notes, by somebody who did not know the implementation, gave the same
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .forms import Trajectory, by_group, clip, mean


def segment_entropy(top_logprobs: Sequence[Sequence[float]], vocabulary: int, first: int = 20, average: bool = False) -> float:
    """h of one generated segment: -sum p log p over ALL reported log-probs of its first `first` tokens, over log(vocabulary).

    top_logprobs[t] are the engine's top-10 log-probs of token t (sampled token included if the engine reports it). The code's sum over
    tokens is the default; `average` divides by the number of tokens used. No token: 0.
    """
    used = list(top_logprobs)[:first]
    total = -math.fsum(math.exp(x) * x for token in used for x in token) / math.log(vocabulary)
    return total / len(used) if average and used else total


def branches(draw: float, rise: float, weight: float = 0.2, threshold: float = 0.5) -> bool:
    """Whether to branch: clip(draw - weight * rise, 0, 1) <= threshold; rise = h_now - h of the rollout's first segment, draw ~ U(0, 1)."""
    return clip(draw - weight * rise, 0.0, 1.0) <= threshold


def owner(trajectories: Sequence[Trajectory], i: int, k: int) -> tuple[int, int]:
    """The node of turn k (from 0) of trajectory i: before its branch_t a branch shares the parent's turn, and so on upwards."""
    while trajectories[i].parent is not None and k < trajectories[i].branch_t:
        i = trajectories[i].parent
    return i, k


def hard(trajectories: Sequence[Trajectory], returns: Sequence[float], eps: float = 1e-6) -> list[list[float]]:
    """The same, but a turn shared by d trajectories has the mean of their d advantages; own turns keep the trajectory's own."""
    a = by_group(returns, [t.group for t in trajectories], eps=eps)
    through: dict[tuple[int, int], list[float]] = {}
    for i, t in enumerate(trajectories):
        for k in range(len(t.turns)):
            through.setdefault(owner(trajectories, i, k), []).append(a[i])
    return [[mean(through[owner(trajectories, i, k)]) for k in range(len(t.turns))] for i, t in enumerate(trajectories)]
