"""Similar anchors: pairs on the threshold, and groups of similar texts, against a definition written out."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnwise as tw
from turnwise.credit.anchor_groups import anchor_groups
from turnwise.credit.similar import similar_groups
from turnwise.data.rollouts import Rollouts

THRESHOLDS = {
    0.6: (3, 5),
    0.8: (4, 5),
    0.85: (17, 20),
    0.98: (49, 50),
    0.99: (99, 100),
    2 / 3: (2, 3),
    1 / 3: (1, 3),
    0.7: (7, 10),
    0.95: (19, 20),
}
LISTS = st.lists(st.text(alphabet="ab ", max_size=7), min_size=1, max_size=8, unique=True)


def lcs_similarity(a: str, b: str) -> float:
    """2·LCS / (|a| + |b|), by the table of the definition."""
    row = [0] * (len(b) + 1)
    for x in a:
        above = row
        row = [0]
        for j, y in enumerate(b):
            row.append(above[j] + 1 if x == y else max(above[j + 1], row[-1]))
    return 1.0 if not a and not b else 2 * row[-1] / (len(a) + len(b))


def similar(a: str, b: str, threshold: float) -> bool:
    """From the definition, in exact fractions: the threshold is the fraction that was meant by the float."""
    top, bottom = THRESHOLDS[threshold]
    if not a and not b:
        return True
    common = round(lcs_similarity(a, b) * (len(a) + len(b)) / 2)
    return Fraction(2 * common, len(a) + len(b)) >= Fraction(top, bottom)


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_a_pair_exactly_on_the_threshold_is_joined_and_one_below_is_not(threshold: float) -> None:
    top, bottom = THRESHOLDS[threshold]
    for scale in range(1, 9):
        common, rest = top * scale, 2 * (bottom - top) * scale  # 2·common / (common + common + rest) is the threshold
        base = "".join(random.Random(scale).choices("abcdefgh", k=common))
        longer = base + "#" * rest
        assert similar_groups([base, longer], threshold).tolist() == [0, 0], (common, rest)
        assert similar_groups([base, longer + "#"], threshold).tolist() == [0, 1]
    assert similar_groups(["fh", "f h"], 0.8).tolist() == [0, 0]


def slow_groups(texts: list[str], threshold: float) -> list[int]:
    groups = [[i] for i in range(len(texts))]

    def least(one: list[int], two: list[int]) -> float:
        return min(lcs_similarity(texts[i], texts[j]) if similar(texts[i], texts[j], threshold) else -1.0 for i in one for j in two)

    while len(groups) > 1:
        closeness = {(a, b): least(groups[a], groups[b]) for a in range(len(groups)) for b in range(a + 1, len(groups))}
        (a, b), best = max(closeness.items(), key=lambda item: (item[1], -item[0][0], -item[0][1]))
        if best < 0:
            break
        groups[a] = sorted(groups[a] + groups.pop(b))
        groups.sort()
    return [next(group[0] for group in groups if i in group) for i in range(len(texts))]


@given(LISTS, st.sampled_from(sorted(THRESHOLDS)))
def test_groups_are_those_of_the_definition_and_any_two_texts_of_one_are_similar(texts: list[str], threshold: float) -> None:
    label = similar_groups(texts, threshold)
    assert label.tolist() == slow_groups(texts, threshold)
    for i in range(len(texts)):
        for j in np.flatnonzero(label == label[i]):
            assert similar(texts[i], texts[j], threshold)


def test_a_template_does_not_chain_everything() -> None:
    texts = ["".join("on" if k < i else "off" for k in range(30)) for i in range(31)]  # neighbours differ in one word
    assert int(np.bincount(similar_groups(texts, 0.95)).max()) < 10


def test_groups_do_not_depend_on_the_order_of_rows() -> None:
    rng = random.Random(0)
    base = "".join(rng.choices("abcdefgh ", k=60))
    texts = [base[:i] + "#" * (1 + i % 3) + base[i:] for i in range(0, 60, 4)] * 2
    n = len(texts)
    r = Rollouts.from_columns(
        group=[0] * n, trajectory=np.repeat(np.arange(n // 3), 3), t=np.tile(np.arange(3), n // 3), reward=range(n), anchor=texts
    )
    options = {"anchors": "similar", "threshold": 0.96, "norm": "none"}
    order = rng.sample(range(n), n)
    np.testing.assert_array_equal(tw.credit.compute("gigpo", r.permuted(order), **options), tw.credit.compute("gigpo", r, **options)[order])
    segment, size = anchor_groups(r, "similar", 0.96)
    assert 1 <= size < 15 and tw.credit.explain(r, **options)["anchor_group"].tolist() == segment.tolist()
