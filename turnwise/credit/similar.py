"""Groups of similar texts: the similarity, and three ways to form groups from it.

Two texts are similar when 2·LCS(a, b) / (|a| + |b|) reaches the threshold (LCS: the length of their longest common subsequence). That is
a comparison of integers, LCS ≥ ⌈threshold · (|a| + |b|) / 2⌉: a quotient in floats would lose pairs exactly at a threshold such
as 0.8. From similar pairs to groups:

    complete     any two texts of a group are similar. The closest two groups are joined first (by their least similar pair), for as long as
                 that holds for two of them
    greedy       texts are processed in the order of the turns; each joins the first group whose first text is similar to it
    components   any two texts connected by a chain of similar ones

Templated texts ("You arrive at drawer 7. The drawer 7 is closed.") differ by a word that names another state. A chain of such words joins
everything, and a group around one text joins half. Only if all texts of a group must be similar does the threshold bound their differences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turnwise.data.anchors import Ints
from turnwise.util.errors import MissingExtra

CHARACTER_BINS, TRIGRAM_BITS = 128, 16_384  # of the two bounds on the similarity; more bits give tighter bounds


def linked(texts: Sequence[str], threshold: float, linkage: str) -> Ints:
    """For each text, the index of the first text of its group."""
    return {"components": similar_components, "complete": complete_linkage, "greedy": greedy_linkage}[linkage](texts, threshold)


def similar_components(texts: Sequence[str], threshold: float) -> Ints:
    """For each text the smallest index in its connected component of similar pairs."""
    compare = _Compare(texts, threshold)
    parent = list(range(len(texts)))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, j in _pairs(texts, threshold):
        one, two = find(i), find(j)
        if one != two and compare.similar(i, j):
            parent[max(one, two)] = min(one, two)
    return np.array([find(i) for i in range(len(texts))], np.int64)


def greedy_linkage(texts: Sequence[str], threshold: float) -> Ints:
    """For each text, in the given order, the first earlier text that started a group and is similar; otherwise it starts a new group."""
    compare = _Compare(texts, threshold)
    earlier: dict[int, list[int]] = {}
    for i, j in _pairs(texts, threshold):
        earlier.setdefault(j, []).append(i)
    leader = np.arange(len(texts))
    for j in range(len(texts)):
        for i in sorted(earlier.get(j, ())):
            if leader[i] == i and compare.similar(i, j):
                leader[j] = i
                break
    return leader


def complete_linkage(texts: Sequence[str], threshold: float) -> Ints:
    """For each text the smallest index of its group; in a group any two are similar. Ties are decided by the order of the texts."""
    compare = _Compare(texts, threshold)
    left, right, score = [], [], []
    for i, j in _pairs(texts, threshold):
        if (common := compare.common(i, j)) >= 0:
            left.append(i)
            right.append(j)
            score.append(2 * common / max(len(texts[i]) + len(texts[j]), 1) if texts[i] or texts[j] else 1.0)
    label = np.arange(len(texts))
    for members, near in _islands(len(texts), np.array(left, np.int64), np.array(right, np.int64), np.array(score)):
        label[members] = members[_agglomerate(near)]
    return label


def _islands(size: int, left: Ints, right: Ints, score: NDArray[np.float64]) -> list[tuple[Ints, NDArray[np.float64]]]:
    """Components of texts connected by similar pairs, and their similarities as a table (−1: not similar). No group crosses components."""
    parent = np.arange(size)
    while True:  # the smallest index spreads along the pairs until nothing changes
        before = parent.copy()
        least = np.minimum(parent[left], parent[right])
        np.minimum.at(parent, left, least)
        np.minimum.at(parent, right, least)
        parent = parent[parent]
        if np.array_equal(before, parent):
            break
    candidates = []
    for root in np.unique(parent[left]).tolist():
        members = np.flatnonzero(parent == root)
        inside = np.flatnonzero(parent[left] == root)
        near = np.full((len(members), len(members)), -1.0)
        one, two = np.searchsorted(members, left[inside]), np.searchsorted(members, right[inside])
        near[one, two] = near[two, one] = score[inside]
        candidates.append((members, near))
    return candidates


def _agglomerate(near: NDArray[np.float64]) -> Ints:
    """Complete linkage on a table of similarities: join the two groups whose least similar pair is the most similar, while there is one."""
    size = len(near)
    label = np.arange(size)
    while size > 1:
        place = int(near.argmax())
        keep, gone = sorted(divmod(place, len(near)))
        if near[keep, gone] < 0:
            break
        near[keep] = near[:, keep] = np.minimum(near[keep], near[gone])
        near[gone] = near[:, gone] = near[keep, keep] = -1.0
        label[label == gone] = keep
        size -= 1
    return label


class _Compare:
    """Similar pairs of these texts, by rapidfuzz, which stops early on a pair that cannot reach the threshold."""

    def __init__(self, texts: Sequence[str], threshold: float):
        try:
            from rapidfuzz.distance import LCSseq
        except ImportError:
            raise MissingExtra("anchors=similar", "similar") from None
        self._similarity, self._texts, self._threshold = LCSseq.similarity, texts, threshold
        self._length = np.array([len(text) for text in texts], np.int64)

    def common(self, i: int, j: int) -> int:
        """The length of the longest common subsequence; −1 if it is too short for the threshold."""
        needed = int(least_common(self._length[i], self._length[j], self._threshold))
        result = int(self._similarity(self._texts[i], self._texts[j], score_cutoff=needed))
        return result if result >= needed else -1

    def similar(self, i: int, j: int) -> bool:
        return self.common(i, j) >= 0


def _pairs(texts: Sequence[str], threshold: float) -> list[tuple[int, int]]:
    left, right = possible_pairs(texts, threshold)
    return list(zip(left.tolist(), right.tolist(), strict=True))


def possible_pairs(texts: Sequence[str], threshold: float) -> tuple[Ints, Ints]:
    """Pairs i < j that may reach the threshold, the most promising first, so that components close early and other pairs are skipped.

    Three bounds avoid most comparisons without ever skipping a similar pair: lengths, the number of characters that the texts share in any
    order, and the number of shared trigrams."""
    points = [np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64) for text in texts]
    length = np.array([len(point) for point in points], np.int64)
    characters = np.array([np.bincount(point % CHARACTER_BINS, minlength=CHARACTER_BINS) for point in points], np.int32)
    trigrams = np.array([_trigram_bits(point) for point in points])
    hidden = np.maximum(length - 2, 0) - np.bitwise_count(trigrams).sum(axis=1, dtype=np.int64)  # trigrams that share a bit with another
    lefts, rights, bounds = [], [], []
    for i in range(len(texts) - 1):
        others = np.arange(i + 1, len(texts))
        others = others[np.minimum(length[i], length[others]) >= least_common(length[i], length[others], threshold)]
        shared = np.minimum(characters[i], characters[others]).sum(axis=1, dtype=np.int64)
        enough = shared >= least_common(length[i], length[others], threshold)
        others, shared = others[enough], shared[enough]
        both = np.bitwise_count(trigrams[i] & trigrams[others]).sum(axis=1, dtype=np.int64) + np.minimum(hidden[i], hidden[others])
        enough = both >= _least_trigrams(length[i], length[others], least_common(length[i], length[others], threshold))
        lefts.append(np.full(int(enough.sum()), i))
        rights.append(others[enough])
        bounds.append((2 * shared / np.maximum(length[i] + length[others], 1))[enough])
    if not lefts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(-np.concatenate(bounds), kind="stable")
    return np.concatenate(lefts)[order], np.concatenate(rights)[order]


def least_common(a: np.integer, b: Ints | np.integer, threshold: float) -> Ints:
    """The length that the longest common subsequence must have. The threshold is meant as a decimal fraction and stored as a float,
    so values within 1e-9 of it count as reached."""
    return np.asarray(np.ceil(threshold * (a + b) / 2 - 1e-9)).astype(np.int64)


def _least_trigrams(a: np.integer, b: Ints, common: Ints) -> Ints:
    """The minimum number of trigrams that two texts of these lengths share if their longest common subsequence has `common` characters: a
    deleted character removes at most three trigrams, an inserted one breaks at most two."""
    deleted, inserted = a - common, b - common
    return np.asarray(np.maximum(a - 2 - 3 * deleted - 2 * inserted, b - 2 - 3 * inserted - 2 * deleted))


def _trigram_bits(points: Ints) -> NDArray[np.uint64]:
    """A bit set of a text's trigrams. The k-th occurrence of a trigram is a separate element, so that common elements of two sets count
    common trigrams with their multiplicity. The caller counts elements that share a bit; they only weaken the bound."""
    grams = np.sort((points[:-2] << 42) ^ (points[1:-1] << 21) ^ points[2:])
    place = np.arange(len(grams))
    first = np.concatenate([[True], grams[1:] != grams[:-1]]) if len(grams) else np.zeros(0, np.bool_)
    occurrence = place - np.maximum.accumulate(np.where(first, place, 0)) if len(grams) else place
    mixed = (grams.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ (occurrence.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F))
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = np.zeros(TRIGRAM_BITS, np.uint8)
    bits[mixed >> np.uint64(64 - TRIGRAM_BITS.bit_length() + 1)] = 1
    return np.packbits(bits).view(np.uint64)
