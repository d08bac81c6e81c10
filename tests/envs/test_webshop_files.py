"""WebShop's files: read in a stream, found where they are, refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webshop_case import write_shop

import turnwise as tw
from turnwise.envs.webshop import files
from turnwise.envs.webshop.catalogue import Catalogue
from turnwise.envs.webshop.files import choose_files, entries, find_data, read_at
from turnwise.util.errors import TurnwiseError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    content=st.lists(JSON, max_size=4) | st.dictionaries(st.text(max_size=5), JSON, max_size=4),
    block=st.integers(1, 40),
    ascii_only=st.booleans(),
    indent=st.none() | st.just(1),
)
def test_a_stream_gives_what_the_whole_file_holds(
    tmp_path_factory: pytest.TempPathFactory, content: Any, block: int, ascii_only: bool, indent: int | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "stream.json"
    try:
        path.write_text(json.dumps(content, ensure_ascii=ascii_only, indent=indent), encoding="utf-8")
    except UnicodeEncodeError:  # a lone surrogate cannot be written as UTF-8
        return
    before, files.BLOCK = files.BLOCK, block
    try:
        found = list(entries(path))
    finally:
        files.BLOCK = before
    pairs = list(content.items()) if isinstance(content, dict) else [(None, value) for value in content]
    assert [(entry.key, entry.value) for entry in found] == pairs
    with path.open("rb") as file:
        assert [read_at(file, entry.start, entry.length) for entry in found] == [value for _, value in pairs]


@pytest.mark.parametrize("text", ['[{"a": 1}, {"b": ', "[1 2]", '{"a" 1}', "{1: 2}", '"text"', "", "[1,]"])
def test_a_broken_file_is_named_with_the_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(TurnwiseError, match=r"broken\.json, near byte \d+"):
        list(entries(path))


def test_missing_data_says_what_to_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TURNWISE_DATA", "WEBSHOP_DATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(TurnwiseError, match=r"items_shuffle_1000\.json.*setup\.sh.*WEBSHOP_DATA"):
        find_data()
    with pytest.raises(TurnwiseError, match=r"no items_shuffle\.json\. "):
        choose_files(write_shop(tmp_path / "shop"), None)
    (tmp_path / "shop" / "items_ins_v2_1000.json").unlink()
    with pytest.raises(TurnwiseError, match=r"no items_ins_v2_1000\.json or items_ins_v2\.json beside items_shuffle_1000\.json"):
        choose_files(tmp_path / "shop", 1000)
    listed = next(row for row in tw.envs.describe("webshop") if row["name"] == "webshop")
    assert not listed["ready"] and "WEBSHOP_DATA" in listed["needs"][0]["remedy"]


def test_the_full_files_serve_any_number_of_products(tmp_path: Path) -> None:
    folder = write_shop(tmp_path)
    for name in ("items_shuffle", "items_ins_v2"):
        (folder / f"{name}_1000.json").rename(folder / f"{name}.json")
    assert len(Catalogue(choose_files(folder, 2), 2)) == 2
    assert len(Catalogue(choose_files(folder, None))) == 6


@pytest.mark.parametrize("ascii_only", [True, False])
def test_products_are_cleaned_as_the_reference_cleans_them(tmp_path: Path, ascii_only: bool) -> None:
    catalogue = Catalogue(choose_files(write_shop(tmp_path, ascii_only), 1000))
    assert catalogue.ids == [f"B00000000{number}" for number in range(1, 7)]
    lamp = catalogue.find("B000000001")
    assert lamp.options == {"color": ("stone wash", "red | blue"), "size": ("small", "large")}
    assert (lamp.query, lamp.price_tag, lamp.title) == ("lamps", "$12.5", "Brass Desk Lamp")
    oak = catalogue.find("B000000002")
    assert oak.options == {} and 20 <= oak.price <= 40 and oak.price_tag == "$20.0 to $40.0"
    assert [catalogue.find(f"B00000000{number}").price for number in (3, 4)] == [100.0, 100.0]
    assert catalogue.find("B000000004").features == ("one text",)
    assert list(catalogue.goal_counts) == [4, 0, 0, 0, 1, 0]
    assert lamp.index_text.endswith("first feature  color: stone wash, red | blue, and size: small, large")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "no product in this file"),
        ("[1]", "a product is a JSON object, not int"),
        ('[{"asin": "B1", "customization_options": {"color": ["red"]}}]', "product B1 is not as in the official file"),
        ('[{"asin": "B1", "customization_options": {"color": 3}}]', "product B1 is not as in the official file"),
    ],
)
def test_products_in_another_form_are_named(tmp_path: Path, content: str, words: str) -> None:
    folder = write_shop(tmp_path)
    (folder / "items_shuffle_1000.json").write_text(content)
    with pytest.raises(TurnwiseError, match=words):
        Catalogue(choose_files(folder, 1000))


def test_a_shop_without_any_goal_has_empty_splits(tmp_path: Path) -> None:
    folder = write_shop(tmp_path)
    (folder / "items_ins_v2_1000.json").write_text("{}")
    assert [len(tw.tasks("webshop", split, data=str(folder))) for split in ("train", "valid")] == [0, 0]


def test_an_unknown_product_names_the_file(tmp_path: Path) -> None:
    catalogue = Catalogue(choose_files(write_shop(tmp_path), 1000))
    with pytest.raises(TurnwiseError, match=r"items_shuffle_1000\.json: there is no product 'B1'"):
        catalogue.find("B1")
