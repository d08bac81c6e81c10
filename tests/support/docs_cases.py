"""Sections and tables of the pages, as several suites read them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from conftest import ROOT

from turnwise.config.options import Option

METHODS = ROOT / "docs" / "methods"  # one page per method; a credit function or an objective of that name is described there


ALGORITHMS, OBJECTIVES_PAGE, ROLLOUTS, DESIGN = (
    ROOT / "docs" / f"{name}.md" for name in ("guides/credit", "guides/objectives", "guides/rollouts", "design")
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def section(page: Path, title: str) -> str:
    """What stands under the heading that starts with `title`, to the next heading of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(title)}[^\n]*\n(.*?)(?=^#{{1,6}} |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{name_of(page)} has no section {title!r}"
    return found[2]


def tables(text: str) -> list[list[dict[str, str]]]:
    """The tables of a text, each as rows of heading → cell."""
    found = []
    for block in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.strip().split("\n")]
        assert all(len(row) == len(rows[0]) for row in rows), f"a table with rows of different width:\n{block}"
        found.append([dict(zip(rows[0], row, strict=True)) for row in rows[2:]])
    return found


def same_default(shown: str, option: Option) -> bool:
    if option.default is None or isinstance(option.default, bool | str):
        return shown == {None: "none", True: "true", False: "false", "": "(empty)"}.get(option.default, str(option.default))
    if isinstance(option.default, list | tuple) and any(isinstance(one, str) for one in option.default):
        return bool(shown)  # texts are too long for a table: it says what they are
    if isinstance(option.default, list | tuple | dict):
        return bool(json.loads(shown) == (list(option.default) if isinstance(option.default, tuple) else option.default))
    return float(shown) == option.default
