"""GPG (B22): the plain policy gradient with the group mean, rescaled for groups without a signal.

Source: AMAP-ML/GPG, commit e096da8ce527a1636272469cee383ba71ec4a511,
`open-r1/src/open_r1/gpg_trainer.py:_generate_and_score_completions`, `merge` and `compute_loss`. Confirmed by executing the loop's
body with scripted rewards on one process (tests/golden/gpg.json, the same groups).

The batch keeps the groups that differ, batch by batch in order, then groups of the LAST batch that do not differ; it is cut to the
size of one batch. The factor is 1 / min(1, differing groups / size of a batch), where all differing groups count, also those that
were cut off. Advantages are R - mean without division; the loss is a mean over tokens. After 20 batches an assertion ends the
authors' run.
"""

from __future__ import annotations

from collections.abc import Sequence

from .forms import deviation, mean


def alpha(returns: Sequence[Sequence[float]]) -> float:
    """B/(B - M): B trajectories in all, M of them in groups whose returns are all equal (also groups of one). All dead: 1."""
    b = sum(len(group) for group in returns)
    dead = sum(len(group) for group in returns if max(group) == min(group))
    return b / (b - dead) if b > dead else 1.0


def advantages(returns: Sequence[Sequence[float]], divide: bool = False, eps: float = 1e-6, rescale: bool = True) -> list[list[float]]:
    """A = alpha (R - mean)/F per trajectory, groups as given; F = 1 (default) or std1 + eps. Equal returns: exactly 0."""
    factor = alpha(returns) if rescale else 1.0
    result = []
    for group in returns:
        if max(group) == min(group):
            result.append([0.0 for _ in group])
            continue
        by = deviation(group, 1) + eps if divide else 1.0
        result.append([factor * (r - mean(group)) / by for r in group])
    return result


def batch(batches, least=0.4, most=20):
    """(numbers (batch, group) that are learned from, factor of the loss). batches: scripted, each a list of groups of returns."""
    differing = []
    for number, groups in enumerate(batches):
        if number + 1 >= most:
            raise AssertionError("too many batches")
        spread = [max(returns) > min(returns) for returns in groups]
        differing += [(number, place) for place, differs in enumerate(spread) if differs]
        if len(differing) >= least * len(groups):
            rest = [(number, place) for place, differs in enumerate(spread) if not differs]
            return (differing + rest)[: len(groups)], 1 / min(1.0, len(differing) / len(groups))
    raise IndexError("the script is too short")
