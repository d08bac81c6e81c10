"""Texts that name code (`path/to/file.py:Name`, `path/to/file.py`, `package.module:Name`), and what is known about it before any of it
runs.

A file is parsed and never executed here; a module is found and never imported. So a recipe can be checked (`--dry-run`) without running
what it names, and what is clearly not of the right kind is rejected before its file can do anything.
"""

from __future__ import annotations

import ast
import re
import site
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from turnwise.config.objects import is_given
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.files import cache_folder
from turnwise.util.syntax import undisturbed

NAME = r"[A-Za-z_]\w*"
DOTTED = re.compile(rf"{NAME}(\.{NAME})*")
LIKE_CODE = re.compile(rf"(?s).*\.py(:.*)?|{NAME}(\.{NAME})*:(?!//)\S+")  # also `module:Id-v0`, which Gymnasium imports
FILE = re.compile(r"([^:\n]+\.py)(:[A-Za-z_][\w.]*)?")
STARTED = ("python", "command", "check")  # options whose value is a program that an environment starts
Home = Literal["python", "installed", "own"]


class Reference(NamedTuple):
    """A reference in its parts: the file or the module, and the name in it (empty: the only environment of a file)."""

    place: str
    attribute: str

    @property
    def path(self) -> Path | None:
        """The file, if it is one."""
        return Path(self.place).expanduser().resolve() if self.place.endswith(".py") else None


def is_reference(name: str) -> bool:
    """Whether a name points to code (`file.py`, `file.py:Class`, `package.module:Class`) and is not a registered name."""
    return ":" in name or name.endswith(".py")


def parse(reference: str) -> Reference:
    """The parts of a reference; an error if it is not one."""
    place, _, attribute = reference.rpartition(":") if not reference.endswith(".py") else (reference, "", "")
    named = attribute or reference.endswith(".py")
    if not named or (attribute and not DOTTED.fullmatch(attribute)) or not (place.endswith(".py") or DOTTED.fullmatch(place)):
        raise TurnwiseError(f"{reference!r} names no code: write path/to/file.py:Name or package.module:Name")
    return Reference(place, attribute)


def code_in(values: Any) -> list[str]:
    """Every text in a recipe's values that names code, or may name it: what a run of the recipe would import or start. Rather one too
    many than one too few."""
    found: set[str] = set()

    def walk(value: Any, key: str = "") -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                walk(inner, str(name))
        elif isinstance(value, list | tuple | set):
            for inner in value:
                walk(inner, key)
        elif isinstance(value, Path):
            walk(str(value), key)
        elif isinstance(value, str) and is_given(value):
            return  # an object of this process: nothing is imported for it
        elif isinstance(value, str) and (LIKE_CODE.fullmatch(value.strip()) or (key in STARTED and value and value != "none")):
            found.add(value)

    walk(values)
    return sorted(found)


def with_code_beside(values: Any, folder: Path) -> Any:
    """A recipe's values in which code files that are next to the recipe, and not in the current folder, are named by their path from
    here."""
    if isinstance(values, dict):
        return {key: with_code_beside(value, folder) for key, value in values.items()}
    if isinstance(values, list):
        return [with_code_beside(value, folder) for value in values]
    found = FILE.fullmatch(values) if isinstance(values, str) else None
    if found is None or Path(found[1]).expanduser().is_absolute() or Path(found[1]).exists() or not (folder / found[1]).is_file():
        return values
    place = (folder / found[1]).resolve()
    here = Path.cwd().resolve()
    return f"{place.relative_to(here) if place.is_relative_to(here) else place}{found[2] or ''}"


def located(reference: str) -> str:
    """The reference with its file as a full path: the same text in another folder may mean another file."""
    place, colon, attribute = reference.rpartition(":") if not reference.endswith(".py") else (reference, "", "")
    return f"{Path(place).expanduser().resolve()}{colon}{attribute}" if place.endswith(".py") else reference


def check_unread(reference: str, methods: Sequence[str] = (), word: str = "code") -> None:
    """Checks of a reference without running anything: its file or module exists, the file is Python and has the name, and, if the name is
    a plain class, the class has these methods."""
    place, attribute = parsed = parse(reference)
    path = parsed.path
    if path is None:
        check_module(place, reference)
        return
    if not path.is_file():
        raise TurnwiseError(f"there is no file {place} (looked in {Path.cwd()})")
    try:
        names, classes = _read(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise TurnwiseError(f"{place}, line {error.lineno}: {error.msg}") from error
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise TurnwiseError(f"{place} cannot be read as Python: {type(error).__name__}: {error}") from None
    first, _, deeper = attribute.partition(".")
    if first and names is not None and first not in names and not first.startswith("__"):
        raise unknown_name(f"name in {place}:", attribute, [name for name in names if not name.startswith("_")])
    found = classes.get(first)
    if found is not None and not deeper and _plain(found):
        own = _bound(found) or set()
        lacks = [method for method in methods if method not in own]
        if lacks:
            raise TurnwiseError(f"{place}:{attribute} is not a valid {word}: {lacking(first, lacks)}")


@lru_cache(maxsize=16)  # each of the many environments of a run names the same file
def _read(source: bytes, path: str) -> tuple[set[str] | None, dict[str, ast.ClassDef]]:
    """The names that a file's text binds, and its classes; of several with one name, the last."""
    tree = undisturbed(lambda: ast.parse(source, path))
    return _bound(tree), {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def lacking(name: str, methods: Sequence[str]) -> str:
    """What a class lacks, as text."""
    return f"{name} has no method {' and no '.join(f'{method}()' for method in methods)}"


def check_module(name: str, reference: str) -> None:
    """Checks that a module exists, without importing it or its package; modules of Python itself and programs are rejected."""
    top, *parts = name.split(".")
    if home_of(name) == "python" or parts[-1:] == ["__main__"]:
        raise TurnwiseError(f"{reference!r} is rejected: {name} is part of Python or a program, and holds nothing that a recipe may name")
    if name in sys.modules:
        return
    where: Any = None
    for number, part in enumerate([top, *parts]):
        full = ".".join([top, *parts][: number + 1])
        known = sys.modules.get(full)
        spec = getattr(known, "__spec__", None) if known is not None else _find(full, where)
        if spec is None and known is None:
            missing = f"there is no module {full!r}. A file is given as path/to/file.py:Class"
            raise TurnwiseError(f"{reference!r}: {missing}")
        where = list(getattr(known, "__path__", None) or getattr(spec, "submodule_search_locations", None) or ())
        if part != [top, *parts][-1] and not where:
            raise TurnwiseError(f"{reference!r}: {full!r} is a module and holds no others")


def home_of(module: str) -> Home:
    """Where a module comes from: Python itself, an installed package, or the user's own files."""
    if module == "__main__":
        return "own"
    if module.partition(".")[0] in sys.stdlib_module_names or module in sys.builtin_module_names:
        return "python"
    known = sys.modules.get(module)
    spec = getattr(known, "__spec__", None) or (None if known is not None else _find(module.partition(".")[0], None))
    origin = getattr(known, "__file__", None) or getattr(spec, "origin", None)
    if not origin:
        return "own"
    place = Path(origin).resolve()
    return "installed" if any(place.is_relative_to(folder) for folder in _installed()) else "own"


@cache
def _installed() -> tuple[Path, ...]:
    """The folders in which packages are installed."""
    folders = {
        str(cache_folder("packages")),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
    return tuple(Path(folder).resolve() for folder in folders)


def _find(name: str, where: list[str] | None) -> Any:
    for finder in sys.meta_path:
        try:
            found = finder.find_spec(name, where) if hasattr(finder, "find_spec") else None
        except (ImportError, ValueError, OSError):
            continue
        if found is not None:
            return found
    return None


def _plain(node: ast.ClassDef) -> bool:
    """Whether everything that a class has is defined in its own lines."""
    bases = [base for base in node.bases if not (isinstance(base, ast.Name) and base.id == "object")]
    known = _bound(node)
    return not bases and not node.keywords and not node.decorator_list and known is not None and "__getattr__" not in known


def _bound(node: ast.Module | ast.ClassDef) -> set[str] | None:
    """The names that the lines of a file or a class bind; None if they cannot be determined."""
    found: set[str] = set()
    todo: list[ast.AST] = list(node.body)
    while todo:
        line = todo.pop()
        if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(line.name)
            continue
        if isinstance(line, ast.Import | ast.ImportFrom):
            if any(alias.name == "*" for alias in line.names):
                return None
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in line.names}
        elif isinstance(line, ast.Name) and isinstance(line.ctx, ast.Store):
            found.add(line.id)
        elif isinstance(line, ast.Call) and isinstance(line.func, ast.Name) and line.func.id in ("exec", "globals", "setattr", "vars"):
            return None
        todo += ast.iter_child_nodes(line)
    return None if "__getattr__" in found and isinstance(node, ast.Module) else found
