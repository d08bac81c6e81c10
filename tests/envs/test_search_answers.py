"""When an answer is right: SQuAD's normalisation, exact match and F1, against a table made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.search.answers import exact_match, f1, normalise

NORMAL = [
    ("The Beatles", "beatles"),
    ("  a   an  the  ", ""),
    ("U.S.A.", "usa"),
    ("Jean-Luc", "jeanluc"),
    ("theatre", "theatre"),
    ("An apple a day", "apple day"),
    ("December 14, 1972", "december 14 1972"),
    ("rock 'n' roll", "rock n roll"),
    ("Ștefan", "ștefan"),
    ("the-end", "theend"),
    ("1,000", "1000"),
    ("\tnew\nline ", "new line"),
]
MATCHES = [
    ("The Beatles!", ["beatles"], True, 1.0),
    ("john lennon", ["Paul McCartney", "John Lennon"], True, 1.0),
    ("Lennon", ["John Lennon"], False, 2 / 3),
    ("John Winston Lennon", ["John Lennon"], False, 0.8),
    ("new new york", ["new york york"], False, 2 / 3),
    ("red blue", ["green"], False, 0.0),
    ("14 December 1972", ["December 1972", "14 December 1972 UTC"], False, 6 / 7),
    ("yes", ["no"], False, 0.0),
    ("!!!", ["!!!"], True, 1.0),
    ("the", ["!!!"], False, 0.0),
    ("The The", ["the the"], True, 1.0),
    ("a", ["The The"], False, 0.0),
    ("", ["The The"], False, 0.0),
    ("the", ["Rome"], False, 0.0),
]


@pytest.mark.parametrize(("text", "plain"), NORMAL)
def test_texts_are_normalised_as_squad_does(text: str, plain: str) -> None:
    assert normalise(text) == plain


@pytest.mark.parametrize(("answer", "accepted", "right", "overlap"), MATCHES)
def test_exact_match_and_f1_are_those_of_the_table(answer: str, accepted: list[str], right: bool, overlap: float) -> None:
    assert exact_match(answer, accepted) is right
    assert f1(answer, accepted) == pytest.approx(overlap)


@given(st.text(max_size=30), st.lists(st.text(max_size=30), max_size=3))
def test_scores_stay_in_their_range_and_a_match_has_f1_one(answer: str, accepted: list[str]) -> None:
    assert 0.0 <= f1(answer, accepted) <= 1.0
    if exact_match(answer, accepted):
        assert f1(answer, accepted) == 1.0
