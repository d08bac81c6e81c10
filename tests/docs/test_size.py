"""The budget in docs/design.md: nothing grows unnoticed. Who exceeds a number lowers another, or changes the table with one line of reason.

PYTHONPATH=tests:tests/support python tests/docs/test_size.py     the numbers as they are
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import ROOT
from docs_cases import DESIGN, section, tables

from turnwise.cli.app import app
from turnwise.recipe.schema import fields

PACKAGE = ROOT / "turnwise"
ENVIRONMENTS, TESTS = ROOT / "packages" / "turnwise-envs", ROOT / "tests"
# Credit in other trainers, the diagnosis of logs and the arena are products of their own within the base: rooms, and what other rooms have
# for them.
PRODUCTS = ("hosts", "logs", "arena")
THEIR_PARTS = (
    *("cli/arena.py", "cli/diagnose.py", "credit/spans.py", "credit/tables.py", "credit/pooled_td.py", "credit/auto.py"),
    *("lab/audit.py", "lab/audit_tables.py", "pages/diagnosis.py"),
)
THEIR_TESTS = ("credit/test_tables.py", "references/pooled_td.py", "pages/test_pages_diagnosis.py", "lab/test_lab_audit.py")


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def python(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in folder.rglob("*.py") if "__pycache__" not in path.parts]


def without_products(folder: Path) -> list[Path]:
    """The Python files of a folder without those of the rooms that are products."""
    return [path for path in python(folder) if path.relative_to(folder).parts[0] not in PRODUCTS]


def counted(room: Path) -> list[Path]:
    """The files of a room that count as files: the folders of environments are one thing each, as is a method."""
    files = python(room)
    return [path for path in files if path.parent == room] if room.name == "envs" else files


def recipe_fields() -> list[str]:
    """Every key that a recipe can set; a section itself is none."""
    return [key for key, _, section in fields() if section is None]


def cli_options() -> list[str]:
    group: Any = typer.main.get_command(app)

    def options(command: Any, path: str) -> Iterator[str]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from options(inner, f"{path} {name}")
        yield from (f"{path} {option.opts[0]}" for option in command.params if option.opts[0].startswith("-") and option.name != "help")

    return list(options(group, "turnwise"))


def pages() -> list[Path]:
    """The pages that somebody wrote: none that `make docs` makes from the code."""
    docs = ROOT / "docs"
    made = {docs / "reference" / f"{name}.md" for name in ("cli", "recipe", "python")}
    return [path for path in docs.rglob("*.md") if "_build" not in path.parts and path not in made]


def manual() -> list[Path]:
    """What a user reads: neither what is looked up, nor how something was measured, nor what was found."""
    aside = {ROOT / "docs" / name for name in ("reference", "methods", "measurements", "results")}
    return [page for page in pages() if not aside & {*page.parents}]


def words(pages: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").split()) for path in pages)


@cache
def sizes() -> dict[str, int]:
    """What the second table counts."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    core = {*without_products(PACKAGE)} - {PACKAGE / part for part in THEIR_PARTS}
    return {
        "core package without the products, lines": lines(core),
        "core package without the products, modules": len(core),
        "core package, lines": lines(python(PACKAGE)),
        "core package, modules": len(python(PACKAGE)),
        "`packages/turnwise-envs`, lines": lines(python(ENVIRONMENTS / "src")),
        "tests of both, lines": lines(python(TESTS)),
        "tests without those of the products, lines": lines({*without_products(TESTS)} - {TESTS / part for part in THEIR_TESTS}),
        "benchmarks, scripts": len(python(ROOT / "benchmarks")),
        "benchmarks, lines": lines(python(ROOT / "benchmarks")),
        "recipe fields": len(recipe_fields()),
        "options of the command line": len(cli_options()),
        "extras of the core package": len(extras),
        "words of the manual": words(manual()),
        "words in docs/": words(pages()),
    }


@cache
def rooms() -> dict[str, tuple[int, int]]:
    """Room → its files and lines."""
    folders = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
    return {f"`{folder.name}/`": (len(counted(folder)), lines(python(folder))) for folder in folders}


ROOMS, WHOLE = tables(section(DESIGN, "The budget"))


@pytest.mark.parametrize("row", ROOMS, ids=lambda row: row["room"].strip("`/"))
def test_a_room_stays_within_its_budget(row: dict[str, str]) -> None:
    files, count = rooms()[row["room"]]
    assert files <= int(row["files"]), f"{row['room']} has {files} files: merge some, or change the table and say why"
    assert count <= int(row["lines"].replace(",", "")), f"{row['room']} has {count} lines: remove some, or change the table and say why"


def test_the_budget_names_every_room() -> None:
    assert {row["room"] for row in ROOMS} == set(rooms())


@pytest.mark.parametrize("row", WHOLE, ids=lambda row: row["what"])
def test_the_whole_stays_within_its_budget(row: dict[str, str]) -> None:
    number = sizes()[row["what"]]
    assert number <= int(row["at most"].replace(",", "")), f"{row['what']}: {number}"


if __name__ == "__main__":
    for room, (files, count) in rooms().items():
        print(f"| {room} | {files} | {count:,} |")
    for what, number in sizes().items():
        print(f"| {what} | {number:,} |")
