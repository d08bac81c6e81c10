"""Every registered method: it trains on the quickstart or says what is missing, its page lists its options, and the map is up to date."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from docs_cases import METHODS, name_of, same_default, section, tables
from small_runs import SMALLEST

import turnwise as tw
from turnwise.config.options import Entry
from turnwise.methods.registry import methods
from turnwise.recipe.names import STAGES, registry
from turnwise.setup.catalogue import page_of, pieces_of

REWRITTEN = runpy.run_path(str(METHODS / "tables.py"))["rewritten"]
QUICKSTART = ROOT / "recipes" / "quickstart.toml"
OWN = list(methods)
SMALL = SMALLEST | {"iterations": 1, "run.checkpoint_every": 0}
every = pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
PAGE = METHODS / "README.md"


@every
def test_a_method_trains_on_the_quickstart_or_says_what_is_missing(entry: Entry[Any], tmp_path: Path) -> None:
    try:
        result = tw.train(QUICKSTART, method=entry.name, out=str(tmp_path), name="small", **SMALL)
    except tw.TurnwiseError as error:
        words = r"\b(needs?|add|set|give|choose|must|use|ask|teach)\b"
        assert re.search(words, str(error), re.IGNORECASE), f"it does not say what to do: {error}"
        assert not any(tmp_path.glob("*/model")), "a run that cannot work teaches no model"
    else:
        assert result.summary["iterations"] == 1


@every
def test_a_method_says_what_it_changes_and_costs_and_how_sure_it_is(entry: Entry[Any]) -> None:
    assert [word for word in ("changes", "costs", "evidence") if not entry.notes.get(word)] == []
    assert entry.paper


@every
def test_the_page_of_a_method_lists_its_options_and_defaults(entry: Entry[Any]) -> None:
    page = page_of(entry)
    assert page is not None, f"write docs/methods/{entry.name}.md"
    rows = [row for table in tables(section(page, "Options")) for row in table if {"option", "default"} <= set(row)]
    rows = [row for row in rows if re.fullmatch(r"`?\w+`?", row["option"])]  # "`words` (plan)" is an option of a piece alone
    shown = {row["option"].strip("`"): row["default"].strip("`") for row in reversed(rows)}  # the method's own table comes first
    assert set(entry.options) <= set(shown)
    # the options of the pieces that a method sets, and of those that have its name
    pieces = [registry(piece.family)[piece.name] for piece in pieces_of(entry)]
    pieces += [other for family in STAGES for other in registry(family) if other.name == entry.name]
    assert set(shown) - set(entry.options) <= {option for piece in pieces for option in piece.options}, "an option that nobody has"
    wrong = [option.name for option in entry.options.values() if not same_default(shown[option.name], option)]
    assert wrong == []


@every
def test_the_page_of_a_method_has_its_parts_and_shows_how_to_run_it(entry: Entry[Any]) -> None:
    text = page_of(entry).read_text()  # type: ignore[union-attr]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[:4] == ["Formula", "Options", "What is uncertain", "Run it"]
    assert f"method.name={entry.name}" in text or f'name = "{entry.name}"' in text


def test_every_page_is_about_a_method_that_exists_or_linked_in_the_map() -> None:
    pages = {path.stem for path in METHODS.glob("*.md")} - {"README", "index"}
    pieces = {entry.name for registry in (methods, tw.credit.algorithms, tw.objectives.algorithms) for entry in registry}
    others = pages - pieces
    assert [name for name in others if f"]({name}.md)" not in PAGE.read_text()] == [], "link it in the map, or remove it"


PAGES = [METHODS / "README.md", METHODS / "settings.md", *filter(None, map(page_of, OWN))]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_pages_say_what_the_methods_say(page: Path) -> None:
    text = page.read_text()
    assert text == REWRITTEN(text, page.stem), "write them again: python docs/methods/tables.py docs/methods/*.md experiments/docs/*.md"
