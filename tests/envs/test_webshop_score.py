"""WebShop's score: fuzzy matching, the two colour rules, the kind of product, prices; and what a perfect purchase gets."""

from __future__ import annotations

import pytest
from conftest import shared_folder
from hypothesis import given
from hypothesis import strategies as st
from webshop_case import item, values

from turnwise.envs.webshop.catalogue import Product, make_product
from turnwise.envs.webshop.env import WebShopEnv
from turnwise.envs.webshop.goals import NO_LIMIT, Goal, price_limit
from turnwise.envs.webshop.score import Colours, Wish, option_matches, score, title_nouns, token_set_ratio, type_share

PHRASE = st.text(st.sampled_from("abc xyz-é日|'"), max_size=24)


@given(PHRASE, PHRASE)
def test_the_token_set_ratio_is_that_of_the_library(one: str, two: str) -> None:
    fuzz, utils = pytest.importorskip("rapidfuzz.fuzz"), pytest.importorskip("rapidfuzz.utils")
    plain = [utils.default_process(text.encode("ascii", "ignore").decode()) for text in (one, two)]
    assert token_set_ratio(one, two) == round(fuzz.token_set_ratio(*plain))


def _product(**more: object) -> Product:
    extra = {"attributes": ["easy clean"]}
    return make_product(item("B000000001", "Brass Desk Lamp", **more), extra)


@pytest.mark.parametrize(
    ("wanted", "chosen", "corrected", "reference"),
    [
        (("color", "dark wash"), "dark wash", True, False),  # "ash" is in "wash"
        (("color", "black"), "black", True, True),
        (("color", "navy blue"), "blue", True, True),
        (("color", "red"), "green", False, False),
        (("size", "9 inch"), "9 inch", True, True),
        (("style", "日本"), "日本", True, False),  # nothing is left of it to be compared fuzzily
        (("", "orange"), "orange", True, True),
    ],
)
def test_the_colour_rules(wanted: tuple[str, str], chosen: str, corrected: bool, reference: bool) -> None:
    assert option_matches(wanted, (chosen,), "corrected") is corrected
    assert option_matches(wanted, (chosen,), "reference") is reference


def test_the_score_counts_attributes_options_and_price() -> None:
    lamp = _product(customization_options={"Color": values("red", "green")}, pricing="$15")
    wish = Wish(lamp, ("easy clean", "made of gold"), {"color": "red"}, 20.0)
    assert score(wish, lamp, {"color": "red"}).total == 3 / 4
    assert score(wish, lamp, {"color": "green"}).total == 2 / 4
    assert score(wish, lamp, {}).total == 2 / 4
    dear = _product(pricing="$25")
    assert score(wish, dear, {"color": "red"}).total == 2 / 4
    assert score(Wish(lamp, ("easy clean",), (), 20.0), lamp, {}).success


def test_an_attribute_may_stand_in_the_texts() -> None:
    lamp = _product(full_description="It is Made Of Gold indeed")
    assert score(Wish(lamp, ("made of gold",), (), 20.0), lamp, {}).attributes == 1.0


@pytest.mark.parametrize(
    ("title", "more", "expected"),
    [
        ("Brass Desk Lamp", {}, 1.0),
        ("Kettle", {}, 0.0),
        ("Lamp of one two three", {"query": "x", "product_category": "y"}, 1.0),
        ("Kettle Lamp", {"query": "x", "product_category": "Home › Lighting"}, 1.0),
    ],
)
def test_the_kind_of_product_is_judged_by_title_query_and_category(title: str, more: dict[str, str], expected: float) -> None:
    assert type_share(_product(), make_product(item("B2", title, **more), {})) == expected


def test_a_kind_that_is_only_faintly_alike_scores_less() -> None:
    nouns = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu".split()  # noqa: SIM905
    wanted = make_product(item("B1", " ".join(nouns[:6])), {})
    other = make_product(item("B2", "alpha", query="x", product_category="y"), {})
    assert type_share(wanted, other) == 0.5
    assert type_share(wanted, make_product(item("B2", "alpha"), {})) == 1.0
    assert type_share(make_product(item("B1", " ".join(nouns)), {}), other) == 0.1


def test_nouns_leave_out_function_and_describing_words() -> None:
    assert title_nouns("The New Waterproof Men's Shoes with 3 Laces, for You") == ("men", "shoes", "laces")


def test_a_price_limit_is_a_round_price_above_the_price() -> None:
    limits = {price_limit(12.5, f"B{number}") for number in range(200)}
    assert limits == {30.0, 40.0, 50.0}
    assert price_limit(20.0, "B1") > 20.0
    assert price_limit(975.0, "B1") == 990.0
    assert price_limit(985.0, "B1") == NO_LIMIT


@pytest.fixture(scope="module")
def shop() -> WebShopEnv:
    return WebShopEnv(shared_folder("webshop"))


@pytest.mark.parametrize(("colours", "won"), [("corrected", 6910), ("reference", 6452)])
def test_buying_the_wanted_item_is_perfect_but_for_what_the_reference_rule_denies(shop: WebShopEnv, colours: Colours, won: int) -> None:
    perfect = 0
    for split in ("train", "valid"):
        for task in shop.tasks(split):
            goal = Goal.of(task)
            assert isinstance(goal.options, dict)
            wish = goal.wish(shop.catalogue)
            perfect += score(wish, wish.product, goal.options, colours).success
    assert perfect == won
