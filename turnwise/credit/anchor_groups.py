"""Anchor groups: which turns of a group started from the same state.

`exact`: equal anchors. `similar`: anchors are texts, and two of them belong together when a chain of texts of the same group joins them
in which neighbours have a normalised indel similarity 2·LCS/(|a|+|b|) of at least the threshold (LCS: the length of the longest
common subsequence). That is symmetric and does not depend on the order of rows; a greedy walk over rows has neither property.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from turnwise.anchors import Ints
from turnwise.credit.segments import pair
from turnwise.errors import MissingExtra, TurnwiseError
from turnwise.options import Help
from turnwise.rollouts import Rollouts

AnchorRule = Annotated[Literal["exact", "similar"], Help("which anchors are one state: equal ones, or texts that are similar")]
Threshold = Annotated[float, Help("with anchors=similar: the least similarity 2·LCS/(|a|+|b|)", low=0, high=1)]

BINS = 128  # character classes of the cheap bound on the similarity


def anchor_groups(r: Rollouts, anchors: str = "exact", threshold: float = 0.95) -> tuple[Ints, int]:
    """For each turn the dense id of its anchor group, and the number of anchor groups."""
    code, size = pair(r.group, r.anchor)
    if anchors == "exact":
        return code, size
    first_row = np.zeros(size, np.int64)
    first_row[code[::-1]] = np.arange(len(code))[::-1]
    merged = _merge_similar(r, r.group[first_row], r.anchor[first_row], threshold)
    return pair(r.group, merged[code])


def _merge_similar(r: Rollouts, group: Ints, anchor: Ints, threshold: float) -> Ints:
    """For each distinct (group, anchor) the smallest index of those it is joined with."""
    root = np.arange(len(anchor))
    for members in np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1]):
        texts = [_text(r, code) for code in anchor[members].tolist()]
        root[members] = members[similar_components(texts, threshold)]
    return root


def _text(r: Rollouts, code: int) -> str:
    text = r.anchor_table.texts[code]
    if text is None:
        row = int(np.flatnonzero(r.anchor == code)[0])
        raise TurnwiseError(f"column 'anchor', row {row}: anchors=similar compares texts, and this anchor is none; use anchors=exact")
    return text


def similar_components(texts: list[str], threshold: float) -> Ints:
    """For each text the smallest index in its connected component under similarity ≥ threshold.

    Two bounds spare most comparisons: lengths, and how many characters the texts can share at all (both never below the true
    similarity). What is left is compared by rapidfuzz, which gives up on a pair as soon as it cannot reach the threshold.
    """
    try:
        from rapidfuzz.distance import Indel
    except ImportError:
        raise MissingExtra("anchors=similar", "similar") from None
    parent = list(range(len(texts)))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    possible = _possible_pairs(texts, threshold)
    for i, j in zip(possible[0].tolist(), possible[1].tolist(), strict=True):
        one, two = find(i), find(j)
        if one != two and Indel.normalized_similarity(texts[i], texts[j], score_cutoff=threshold) >= threshold:
            parent[max(one, two)] = min(one, two)
    return np.array([find(i) for i in range(len(texts))], np.int64)


def _possible_pairs(texts: list[str], threshold: float) -> tuple[Ints, Ints]:
    """Pairs i < j that may reach the threshold. The most promising come first, so that components close early and others are skipped."""
    counts = _character_counts(texts)
    length = np.array([len(text) for text in texts], np.int64)
    lefts, rights, bounds = [], [], []
    for i in range(len(texts) - 1):
        total = length[i] + length[i + 1 :]
        shorter = np.minimum(length[i], length[i + 1 :])
        near = np.flatnonzero(2 * shorter >= threshold * total - 1e-9)
        shared = np.minimum(counts[i], counts[i + 1 + near]).sum(axis=1)
        bound = np.where(total[near] == 0, 1.0, 2 * shared / np.maximum(total[near], 1))
        kept = bound >= threshold - 1e-9
        lefts.append(np.full(int(kept.sum()), i))
        rights.append(i + 1 + near[kept])
        bounds.append(bound[kept])
    if not lefts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(-np.concatenate(bounds), kind="stable")
    return np.concatenate(lefts)[order], np.concatenate(rights)[order]


def _character_counts(texts: list[str]) -> NDArray[np.int32]:
    """How often each character class (code point modulo BINS) occurs in each text: what two texts share is at most the sum of minima."""
    counts = np.zeros((len(texts), BINS), np.int32)
    for row, text in enumerate(texts):
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        counts[row] = np.bincount(points % BINS, minlength=BINS)
    return counts
