"""ARPO (A1): branch a rollout where its entropy rose after an observation; advantages of shared turns are averaged.

The authors' code (RUC-NLPIR/ARPO at a95cd089) trains the soft form, GRPO over all rollouts; it has no function for the hard one, which is
written from notes on the paper. A second reading of the same notes, by somebody who did not know the implementation, gave the same
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .forms import by_group, mean


def hard(trajectories: Sequence[Any], eps: float = 1e-6) -> list[list[float]]:
    """Per trajectory and turn. A turn shared by d trajectories has the mean of their d advantages; own turns keep the trajectory's own.

    A trajectory has an `id`, a `group`, and `turns` with a `reward`; a branch also its `parent`'s id and `branch_t`, the number of turns
    that it shares.
    """
    known = {t.id: t for t in trajectories}

    def owner(t: Any, k: int) -> tuple[Any, int]:
        """The node of turn k: before its branch_t a branch shares the parent's turn, and so on upwards."""
        while t.parent is not None and k < t.branch_t:
            t = known[t.parent]
        return t.id, k

    a = by_group([sum(turn.reward for turn in t.turns) for t in trajectories], [t.group for t in trajectories], eps=eps)
    through: dict[tuple[Any, int], list[float]] = {}
    for own, t in zip(a, trajectories, strict=True):
        for k in range(len(t.turns)):
            through.setdefault(owner(t, k), []).append(own)
    return [[mean(through[owner(t, k)]) for k in range(len(t.turns))] for t in trajectories]
