"""WebShop's search: Lucene's words, stems and ranks."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from conftest import shared_folder
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.webshop.analysis import _WORD, STOP_WORDS, split_words, stem, terms
from turnwise.envs.webshop.env import WebShopEnv
from turnwise.envs.webshop.index import LENGTHS, Index, IndexBuilder, length_byte

TEXT = st.text(st.sampled_from("ab éß'’.:_-3,★\u0301\u200d日カ"), max_size=30)


def build_index(documents: Iterable[tuple[str, str]]) -> Index:
    builder = IndexBuilder()
    for name, text in documents:
        builder.add(name, text)
    return builder.build()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Size:Large 3.5oz t-shirt a/b", ["Size:Large", "3.5oz", "t", "shirt", "a", "b"]),
        ("isn't men’s 'quoted' rock 'n' roll", ["isn't", "men’s", "quoted", "rock", "n", "roll"]),
        ("1,000.50 12:30 5.oz oz.5 10%", ["1,000.50", "12", "30", "5", "oz", "oz", "5", "10"]),
        ("foo_bar _x_ __", ["foo_bar", "_x_"]),
        ("日本 ひら カタカナ 한국어 ภาษา", ["日", "本", "ひ", "ら", "カタカナ", "한국어", "ภาษา"]),
        ("★soft™ ♡ ✔ ✿ © 👍🏽 👨‍👩‍👧 🇩🇪", ["★", "soft", "™", "♡", "✔", "©", "👍🏽", "👨‍👩‍👧", "🇩🇪"]),
        ("cafe\u0301 naïve", ["cafe\u0301", "naïve"]),
        ("x" * 600, ["x" * 255, "x" * 255, "x" * 90]),
        ("", []),
    ],
)
def test_words_are_cut_as_lucene_cuts_them(text: str, expected: list[str]) -> None:
    assert split_words(text) == expected


@given(st.text(st.characters(max_codepoint=127)) | st.text(st.sampled_from("ab1_.,:;'-")) | TEXT | st.text())
def test_the_short_cut_for_ascii_cuts_the_same_words(text: str) -> None:
    assert split_words(text) == [word for word in _WORD.findall(text) if word]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *(("caresses", "caress"), ("ponies", "poni"), ("cats", "cat"), ("agreed", "agre"), ("feed", "feed"), ("plastered", "plaster")),
        *(("motoring", "motor"), ("sing", "sing"), ("hopping", "hop"), ("falling", "fall"), ("filing", "file"), ("happy", "happi")),
        *(("relational", "relat"), ("rational", "ration"), ("conformabli", "conform"), ("archaeology", "archaeolog"), ("goodness", "good")),
        *(
            ("adoption", "adopt"),
            ("replacement", "replac"),
            ("probate", "probat"),
            ("rate", "rate"),
            ("controll", "control"),
            ("sky", "sky"),
        ),
        *(("as", "as"), ("yes", "ye"), ("3ing", "3ing"), ("size:larg", "size:larg")),
    ],
)
def test_stems_are_porters(word: str, expected: str) -> None:
    assert stem(word) == expected


def test_terms_drop_stop_words_and_possessives() -> None:
    assert terms("The Women's dresses ARE with it") == ["women", "dress"]
    assert terms("dog’s cat＇S") == ["dog", "cat"]
    assert len(STOP_WORDS) == 33


def test_lengths_are_exact_up_to_forty_and_rounded_down_beyond() -> None:
    assert [LENGTHS[length_byte(length)] for length in range(41)] == list(range(41))
    assert [int(LENGTHS[length_byte(length)]) for length in (41, 42, 107, 258, 1000)] == [40, 42, 104, 248, 984]
    assert all(length_byte(int(LENGTHS[code])) == code for code in range(256))


def test_equal_scores_are_ordered_by_id_and_the_limit_does_not_disturb_that() -> None:
    names = [f"P{number:02d}" for number in range(20)]
    index = build_index((name, "lamp") for name in reversed(names))
    ids = list(reversed(names))
    assert [ids[number] for number, _ in index.search("lamps", 7)] == names[:7]


def test_an_empty_index_and_a_query_without_words_find_nothing() -> None:
    assert build_index([]).search("lamp") == []
    assert build_index([("a", "lamp")]).search("the ... of") == []
    assert build_index([("a", "")]).search("lamp") == []


@pytest.mark.parametrize("piece", ["_", "_\u0301", "a_", "é_", "é'", "★\U000e0020", "\u200d", "カ_", "1."])
def test_a_very_long_query_comes_back(piece: str) -> None:
    """A pattern that begins again at every character would take hours for these."""
    assert all(len(word) <= 255 for word in split_words(piece * 200_000))


def test_all_reference_queries_rank_as_lucene_ranks_them() -> None:
    folder = shared_folder("webshop")
    env = WebShopEnv(folder)
    first = ten = lists = total = 0
    for line in (folder / "lucene_bm25_top50.tsv").read_text(encoding="utf-8").splitlines():
        query, *results = line.split("\t")
        expected = [result.split(":")[0] for result in results if result]
        scores = {result.split(":")[0]: float(result.split(":")[1]) for result in results if result}
        found = env.search(query)
        total += 1
        first += found[:1] == expected[:1]
        ten += set(found[:10]) == set(expected[:10])
        lists += found == expected
        for number, score in env.catalogue.index.search(query):
            assert score == pytest.approx(scores[env.catalogue.ids[number]], abs=2e-4), query
    assert (first, ten, lists) == (total, total, total)
    assert total == 400
