"""A search for waits without a deadline in the source of the rooms that work with other processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from conftest import ROOT

ROOMS = ("turnwise/cluster", "turnwise/engines/vllm", "turnwise/learn/ranks")
NEVER = {"recv", "recv_bytes", "accept", "barrier", "synchronize", "run_forever", "shutdown", "waitpid", "input"}  # have no time limit
LIMITED = {  # need a time limit: its place among the arguments, from 0; 99: only by name
    "result": 0, "exception": 0, "join": 0, "wait": 0, "select": 3, "acquire": 1, "wait_for": 1, "communicate": 1, "as_completed": 1,
    "create_connection": 1, "collective_rpc": 1, "init_process_group": 2, "new_group": 1, "TCPStore": 4, "ProcessGroupNCCL": 3,
    "ProcessGroupGloo": 3, "check_output": 99, "monitored_barrier": 1, "get": 1,
}  # fmt: skip
Wait = tuple[str, str, str]  # file, function, source


def waits_in(source: str, file: str = "") -> Iterator[Wait]:
    """The waits in a source that have no deadline."""

    def walk(node: ast.AST, where: tuple[str, ...]) -> Iterator[Wait]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            where = (*where, node.name)
        if isinstance(node, ast.Await) or (isinstance(node, ast.Call) and _endless(node)):
            yield file, ".".join(where), ast.unparse(node)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, where)

    yield from walk(ast.parse(source), ())


def all_waits() -> list[Wait]:
    """Those of all rooms."""
    files = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    assert all(any((ROOT / room).glob("*.py")) for room in ROOMS), "the rooms have moved"
    return [wait for path in files for wait in waits_in(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT / "turnwise")))]


def _endless(node: ast.Call) -> bool:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    of_ray = isinstance(function, ast.Attribute) and ast.unparse(function.value) in ("ray", "import_ray()")
    if name in NEVER:
        return True
    if name == "get" and node.args and not of_ray:
        return False  # of a mapping
    if name not in LIMITED:
        return False
    place = 99 if of_ray else 1 if name == "wait" and isinstance(function, ast.Name) else LIMITED[name]
    limits = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"] or node.args[place : place + 1]
    return not limits or any(isinstance(part, ast.Constant) and part.value is None for limit in limits for part in ast.walk(limit))
