"""ActGuide-RL (B17): where all unguided rollouts fail, the shortest helpful prefix of reference actions is shown as a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .forms import Rows, clipped, ratio


def needs_guidance(returns: Sequence[float], delta: float) -> bool:
    """Whether a group is guided: no unguided return reaches delta. delta is not in the notes; the code's default threshold is 0
    (strict)."""
    return max(returns) < delta


def smallest(success: Callable[[int], bool], actions: int, first: int = 1, probes: int | None = None) -> tuple[int, list[int]]:
    """(k, the lengths that were tried): binary search for the smallest k in first..actions with success(k), which is taken to be monotone.

    mid = (low + high) // 2; a success moves high to mid, a failure low to mid + 1; ends at low = high or after `probes` tries (the code:
    first = 0, 4 tries). The result is low; k = actions is returned untried if everything below it failed. No actions: (0, []).
    """
    low, high, tried = min(first, actions), actions, []
    while low < high and (probes is None or len(tried) < probes):
        mid = (low + high) // 2
        tried.append(mid)
        if success(mid):
            high = mid
        else:
            low = mid + 1
    return low, tried


def losses(
    logprobs: Rows, unguided: Rows, guided: Rows, is_guided: Sequence[bool], advantages: Rows, eps_low: float = 0.2, eps_high: float = 0.2
) -> tuple[Rows, Rows]:
    """(loss, gradient) per token; logprobs and `unguided` (old) are WITHOUT the plan in the prompt, `guided` (old) with it.

    Guided rows: ratio pi_theta(z | no plan)/pi_old(z | plan); other rows: the ordinary ratio. The usual clip; mean over all tokens of the
    mixed group. eps is not published; 0.2 is ours.
    """
    loss: Rows = []
    grad: Rows = []
    for i, row in enumerate(logprobs):
        old = guided[i] if is_guided[i] else unguided[i]
        pairs = [clipped(a, ratio(x, y), 1 - eps_low, 1 + eps_high) for x, y, a in zip(row, old, advantages[i], strict=True)]
        loss.append([p[0] for p in pairs])
        grad.append([p[1] for p in pairs])
    return loss, grad
