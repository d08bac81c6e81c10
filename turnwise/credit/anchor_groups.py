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

CHARACTER_BINS, TRIGRAM_BITS = 128, 16_384  # of the two bounds on the similarity; more of them, tighter bounds


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

    Bounds spare most comparisons, and none of them ever spares a similar pair: lengths, how many characters the texts share in any
    order, and how many trigrams. What is left is compared by rapidfuzz, which gives up on a pair that cannot reach the threshold.
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
    points = [np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64) for text in texts]
    length = np.array([len(point) for point in points], np.int64)
    characters = np.array([np.bincount(point % CHARACTER_BINS, minlength=CHARACTER_BINS) for point in points], np.int32)
    trigrams = np.array([_trigram_bits(point) for point in points])
    hidden = np.maximum(length - 2, 0) - np.bitwise_count(trigrams).sum(axis=1, dtype=np.int64)  # trigrams that share a bit with another
    lefts, rights, bounds = [], [], []
    for i in range(len(texts) - 1):
        others = np.arange(i + 1, len(texts))
        others = others[np.minimum(length[i], length[others]) >= _least_common(length[i], length[others], threshold)]
        shared = np.minimum(characters[i], characters[others]).sum(axis=1, dtype=np.int64)
        enough = shared >= _least_common(length[i], length[others], threshold)
        others, shared = others[enough], shared[enough]
        both = np.bitwise_count(trigrams[i] & trigrams[others]).sum(axis=1, dtype=np.int64) + np.minimum(hidden[i], hidden[others])
        enough = both >= _least_trigrams(length[i], length[others], _least_common(length[i], length[others], threshold))
        lefts.append(np.full(int(enough.sum()), i))
        rights.append(others[enough])
        bounds.append((2 * shared / np.maximum(length[i] + length[others], 1))[enough])
    if not lefts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(-np.concatenate(bounds), kind="stable")
    return np.concatenate(lefts)[order], np.concatenate(rights)[order]


def _least_common(a: np.integer, b: Ints, threshold: float) -> NDArray[np.float64]:
    """The shortest common subsequence that is long enough for the threshold."""
    return np.asarray(np.ceil(threshold * (a + b) / 2 - 1e-9))


def _least_trigrams(a: np.integer, b: Ints, common: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many trigrams two texts of these lengths share at least if their longest common subsequence has `common` characters: a deleted
    character takes at most three trigrams with it, an inserted one parts at most two."""
    deleted, inserted = a - common, b - common
    return np.asarray(np.maximum(a - 2 - 3 * deleted - 2 * inserted, b - 2 - 3 * inserted - 2 * deleted))


def _trigram_bits(points: Ints) -> NDArray[np.uint64]:
    """A bit set of a text's trigrams. The k-th occurrence of a trigram is an element of its own, so that common elements of two sets
    count common trigrams with their multiplicity; elements that fall on one bit are counted by the caller and only weaken the bound."""
    grams = np.sort((points[:-2] << 42) ^ (points[1:-1] << 21) ^ points[2:])
    place = np.arange(len(grams))
    first = np.concatenate([[True], grams[1:] != grams[:-1]]) if len(grams) else np.zeros(0, np.bool_)
    occurrence = place - np.maximum.accumulate(np.where(first, place, 0)) if len(grams) else place
    mixed = (grams.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ (occurrence.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F))
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = np.zeros(TRIGRAM_BITS, np.uint8)
    bits[mixed >> np.uint64(64 - TRIGRAM_BITS.bit_length() + 1)] = 1
    return np.packbits(bits).view(np.uint64)
