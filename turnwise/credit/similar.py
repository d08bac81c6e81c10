"""Groups of similar texts: any two texts of a group are similar.

Two texts are similar when 2·LCS(a, b) / (|a| + |b|) reaches the threshold (LCS: the length of their longest common subsequence). That is
a comparison of integers, LCS ≥ ⌈threshold · (|a| + |b|) / 2⌉: a quotient in floats would lose pairs exactly at a threshold such as 0.8.
The closest two groups are joined first, by their least similar pair, for as long as any two texts of two groups are similar.

Templated texts ("You arrive at drawer 7. The drawer 7 is closed.") differ by a word that names another state. A chain of such words would
join everything. Only if all texts of a group must be similar does the threshold bound their differences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turnwise.data.anchors import Ints
from turnwise.util.errors import MissingExtra


def similar_groups(texts: Sequence[str], threshold: float) -> Ints:
    """For each text the index of the first text of its group. Ties are decided by the order of the texts."""
    return join_similar(similarities(texts, threshold))


def join_similar(near: NDArray[np.float64]) -> Ints:
    """The same from the similarities of all pairs, −1 for a pair that is not similar, and for a text and itself."""
    label = np.arange(len(near))
    while near.max() >= 0:
        keep, gone = sorted(divmod(int(near.argmax()), len(near)))
        near[keep] = near[:, keep] = np.minimum(near[keep], near[gone])
        near[gone] = near[:, gone] = near[keep, keep] = -1.0
        label[label == gone] = keep
    return label


def similarities(texts: Sequence[str], threshold: float) -> NDArray[np.float64]:
    """The similarity of each pair of texts; −1 for a pair that is not similar, and for a text and itself. The threshold is meant as a
    decimal fraction and stored as a float, so values within 1e-9 of it count as reached."""
    try:
        from rapidfuzz.distance import Indel
        from rapidfuzz.process import cdist
    except ImportError:
        raise MissingExtra("anchors=similar", "similar") from None
    length = np.array([len(text) for text in texts], np.int64)
    both = length[:, None] + length
    cutoff = max(threshold - 1e-6, 0.0)  # rapidfuzz stops early on a pair that cannot reach it
    share = cdist(texts, texts, scorer=Indel.normalized_similarity, score_cutoff=cutoff, dtype=np.float64)
    common = np.rint(share * both / 2)
    near = np.where(both > 0, 2 * common / np.maximum(both, 1), 1.0)
    near[common < np.ceil(threshold * both / 2 - 1e-9)] = -1.0
    np.fill_diagonal(near, -1.0)
    return near
