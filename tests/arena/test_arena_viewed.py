"""The report of an arena in the viewer, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_browser import open_page, serving
from test_arena import FILE, file, made_up

from turnwise.arena import run as running
from turnwise.arena.card import ENDING, FORMAT, SCHEMA, write
from turnwise.pages.run_list import RunList
from turnwise.util.errors import TurnwiseError

pytest_plugins = ["page_browser"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an arena of which only the cards were kept."""
    arena, out = file(tmp_path, FILE), tmp_path / "out"
    running.bind(arena, out)
    for name, card in made_up(arena, {"gigpo": 0.8, "control-shuffled": 0.9}).items():
        write(card | {"schema": SCHEMA, "format": FORMAT}, out / "cards" / f"{name}{ENDING}")
    return out


def test_the_report_of_an_arena_is_a_link_beside_its_runs(page: Any, folder: Path) -> None:
    with serving(folder) as served:
        open_page(page, served.url)
        page.get_by_role("link", name="Report of this arena").click()
        page.wait_for_selector("svg")
        assert page.locator("li.alarm").inner_text().startswith("A PLACEBO WINS. control-shuffled")
        assert page.locator("svg circle").first.evaluate("mark => getComputedStyle(mark).fill") != "rgb(0, 0, 0)", "its style is allowed"


def test_a_folder_that_is_no_arena_has_no_report_and_a_damaged_one_says_so(page: Any, url: str, folder: Path) -> None:
    open_page(page, url)
    assert not page.get_by_role("link", name="Report of this arena").count()
    (folder / "arena.json").write_text("{")
    with pytest.raises(TurnwiseError, match=r"arena\.json is missing or damaged"):
        running.arena_of(folder)
    (folder / "arena.json").unlink()
    with pytest.raises(TurnwiseError, match="holds no run"):
        RunList(folder)
