"""The pages of the environments: a row per environment in the list, one form, every option with its default, figures as measured."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from docs_cases import section, tables

from turnwise.envs import registry
from turnwise.envs.registry import Spec
from turnwise.recipe.reading import read_recipe, shipped_recipes
from turnwise.util.errors import TurnwiseError

PAGES = ROOT / "docs" / "environments"
INDEX = PAGES / "index.md"
SECTIONS = ["At a glance", "Observation", "Actions", "Reward", "Splits and size", "Speed", "Scores"]
SECTIONS += ["Commands", "Options", "Limits"]
registry.discover()
ROWS = {re.findall(r"`([\w-]+)`", row["name"])[0]: row for row in tables(INDEX.read_text(encoding="utf-8"))[0]}
OWN = {name: entry for name, entry in registry._specs.items() if str(entry.factory).startswith(("turnwise.envs.", "turnwise_envs."))}


def page_of(name: str) -> Path:
    return PAGES / str(re.findall(r"\]\(([\w-]+\.md)\)", ROWS[name]["name"])[0])


def test_the_list_has_exactly_the_environments_of_the_registry() -> None:
    """The rows of `turnwise envs`, with what it says about turns and needs."""
    assert sorted(ROWS) == sorted(OWN)
    for name, row in ROWS.items():
        entry: Spec = OWN[name]
        assert row["turns"] == ("–" if entry.max_turns is None else str(entry.max_turns)), name
        if entry.needs:  # some need an extra that is not asked about before the environment is made
            assert row["needs"] != "–" or name in ("textarena",), f"{name}: the list says that it needs nothing"
        assert f"`{name}`" in page_of(name).read_text(encoding="utf-8"), f"{page_of(name).name} does not name {name}"


def test_every_page_is_in_the_list() -> None:
    assert {page_of(name).name for name in ROWS} == {page.name for page in PAGES.glob("*.md")} - {INDEX.name}


def test_recipes_that_train_on_a_cpu_are_named_right() -> None:
    for name, row in ROWS.items():
        if row["CPU"] != "–":
            recipe = read_recipe(shipped_recipes()[row["CPU"].strip("`")])
            assert recipe["env"]["name"] == name and recipe["device"] == "cpu", row["CPU"]


@pytest.mark.parametrize("page", sorted({page_of(name) for name in ROWS}), ids=lambda page: page.stem)
def test_every_page_has_the_same_sections_in_the_same_order(page: Path) -> None:
    found = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert found[: len(SECTIONS)] == SECTIONS and found[len(SECTIONS) :] in ([], ["Version history"])


def shown(default: Any) -> str:
    if default is None:
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    if isinstance(default, tuple | list):
        return f"`{list(default)}`" if default and not isinstance(default[0], str) else ""  # lists of texts are described in words
    return f"`{default}`" if default != "" else "empty"


@pytest.mark.parametrize("name", sorted(OWN))
def test_every_option_is_on_the_page_with_its_default(name: str) -> None:
    try:
        factory = OWN[name].load()
    except TurnwiseError as error:  # a package that the module itself imports is missing
        pytest.skip(str(error))
    page = page_of(name)
    text = page.read_text(encoding="utf-8").split("\n## Options\n")[1].split("\n## ")[0]
    if f"\n`{name}`:\n" in text:  # the options of several environments, one list each
        text = re.split(r"\n`[\w-]+`:\n", text.split(f"\n`{name}`:\n")[1])[0]
    listed = dict(re.findall(r"`(\w+)` \(((?:[^()]|\([^()]*\))*)\)", text))
    options = inspect.signature(factory).parameters.values()
    missing = [option.name for option in options if option.name not in listed]
    assert not missing, f"{page.name} does not list {missing}"
    for option in options:
        expected = "required" if option.default is option.empty else shown(option.default)
        assert expected in listed[option.name], f"{page.name}: {option.name} is {option.default!r}, the page says ({listed[option.name]})"


def test_the_pages_have_the_figures_that_were_measured() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from environments import panel_rows
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    for row in panel_rows():
        name, panel, _, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        page = page_of(name.strip("`"))
        text = " ".join(section(page, "Scores").split())
        scores, speed = [cell for cell in cells[:3] if cell != "–"], cells[3]
        assert all(score in text for score in scores), f"{page.name}: {name} scored {scores}"
        assert panel.split()[0] in text and speed in section(page, "Speed"), f"{page.name}: {name} has {panel}, {speed} steps/s"
