"""The order of rooms in docs/design.md: who may import whom, no circles, and nothing loose at the top of the package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from conftest import ROOT
from docs_cases import DESIGN, section, tables

PACKAGE = ROOT / "turnwise"
TOP = ("train", "api")  # in this order, above the rooms and below the command line
ENTRANCES = ("turnwise", "turnwise.__main__")  # import what they like, and are imported by nobody


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(part).removesuffix(".__init__"): path for path, part in parts.items()}


def nearest(name: str, known: Mapping[str, object]) -> str:
    """The module that a dotted name lies in: `turnwise.util.files.inside` lies in `turnwise.util.files`."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


@cache
def imported(path: Path, inside: bool) -> tuple[str, ...]:
    """What a file imports by dotted name, anywhere in it, or outside of functions only; what only a type checker imports does not
    count."""
    return tuple(imports_in(path.read_text(encoding="utf-8"), inside))


def statements(node: ast.AST, functions: bool = True) -> Iterator[ast.AST]:
    """All statements below this node, without those that only a type checker sees. An import is never part of an expression."""
    if isinstance(node, ast.FunctionDef) and not functions:
        return
    typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for part in ("orelse",) if typing_only else ("body", "orelse", "finalbody", "handlers", "cases"):
        inside = getattr(node, part, ())
        for statement in inside if isinstance(inside, list) else ():  # a lambda's body is one expression
            yield statement
            yield from statements(statement, functions)


def imports_in(source: str, functions: bool = True) -> Iterator[str]:
    for node in statements(ast.parse(source), functions):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def imports() -> dict[str, set[str]]:
    """Module → the modules of this package that it imports."""
    found = {}
    for name, path in modules().items():
        own = {nearest(other, modules()) for other in imported(path, True) if other.split(".")[0] == "turnwise"}
        found[name] = own - {name}
    return found


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


@cache
def rooms() -> dict[str, tuple[set[str], set[str]]]:
    """Room → what it never imports although it lies below, and what not at the top of a file; from the ground up, as the design has it."""
    rows = {row["room"].strip("`/").split("/")[1]: row["never imports"] for row in tables(section(DESIGN, "The rooms"))[0]}
    parts = {room: never.partition("at the top of a file:") for room, never in rows.items()}
    return {room: (set(re.findall(r"`(\w+)`", never)), set(re.findall(r"`(\w+)`", top))) for room, (never, _, top) in parts.items()}


def in_circles(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules that import each other, directly or by way of others, and those on the way between them."""
    left = dict(graph)
    while True:  # what imports nothing that is left, or is imported by nothing that is left, is in no circle
        apart = {name for name, found in left.items() if not found & left.keys()}
        apart |= left.keys() - set().union(*left.values())
        if not apart:
            return sorted(left)
        left = {name: found for name, found in left.items() if name not in apart}


def test_the_table_names_every_room() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(rooms()) == folders, "the table of rooms in docs/design.md is not the folders of turnwise/"
    assert list(rooms())[-1] == "cli"


def test_nothing_lies_loose_at_the_top_of_the_package() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py", *(f"{name}.py" for name in TOP)}


def test_a_room_imports_only_from_rooms_below_it() -> None:
    *below, cli = rooms()
    rank = {room: place for place, room in enumerate([*below, *TOP, cli])}
    wrong = [
        f"{module} imports {other}"
        for module, found in imports().items()
        if module not in ENTRANCES
        for other in sorted(found)
        if other in ENTRANCES or rank[room_of(other)] > rank[room_of(module)]
    ]
    assert not wrong, "against the order of rooms in docs/design.md:\n" + "\n".join(wrong)


def test_no_modules_import_each_other() -> None:
    assert not in_circles(imports())


def test_a_circle_would_be_found() -> None:
    assert in_circles({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set(), "e": {"a"}}) == ["b", "c"]
    assert not in_circles({"a": {"b"}, "b": {"c"}, "c": set()})


def test_rooms_never_import_what_the_table_forbids() -> None:
    for name, path in modules().items():
        never, at_top = rooms().get(room_of(name), (set(), set()))
        for forbidden, inside in ((never, True), (at_top, False)):
            if not forbidden:
                continue
            parts = [other.split(".") for other in imported(path, inside)]
            found = {part[1] if part[0] == "turnwise" and len(part) > 1 else part[0] for part in parts} & forbidden
            assert not found, f"{path.relative_to(ROOT)} imports {found}; see docs/design.md"


def test_names_of_all_methods_are_known_without_torch() -> None:
    code = "import sys, turnwise; turnwise.credit.algorithms.names(), turnwise.methods.plans.names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_map_of_the_code_names_what_is_there() -> None:
    rows = tables(section(DESIGN, "Where things happen"))[0]
    assert len(rows) > 10
    for row in rows:
        path: Path | None = None
        for name in re.findall(r"`([^`]+)`", row["where"]):
            if name.startswith("turnwise/"):
                path = ROOT / name
                assert path.exists(), name
            elif re.fullmatch(r"\w+", name) and path is not None and path.is_file():
                assert re.search(rf"^\s*(def|class) {name}\b", path.read_text(encoding="utf-8"), re.MULTILINE), f"{name} in {path}"
