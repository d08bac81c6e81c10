"""A search for waits without a deadline in the source of the rooms that work with other processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conftest import ROOT

ROOMS = ("turnwise/cluster", "turnwise/engines/vllm", "turnwise/learn/ranks")
GROUPS = {  # made with a time limit, which then holds for all operations of the group: its place among the arguments, from 0
    "init_process_group": 2, "new_group": 1, "split_group": 2, "new_subgroups": 2, "init_device_mesh": 99, "TCPStore": 4,
    "ProcessGroupNCCL": 3, "ProcessGroupGloo": 3, "ProcessGroup": 99,
}  # fmt: skip
LIMITED = {  # need a `timeout`: its place among the arguments; 99: only by name
    "result": 0, "exception": 0, "join": 0, "acquire": 1, "wait_for": 1, "communicate": 1, "as_completed": 1, "urlopen": 2,
    "create_connection": 1, "collective_rpc": 1, "check_call": 99, "check_output": 99, "monitored_barrier": 1, "getaddrinfo": 99,
} | GROUPS  # fmt: skip
NEVER = {  # have no time limit of their own, whatever they are given
    "recv", "recv_into", "recvfrom", "recv_bytes", "recv_object_list", "irecv", "accept", "barrier", "synchronize", "run_forever",
    "run_until_complete", "wait_tensor", "getch", "input", "shutdown", "waitpid", "sigwait",
}  # fmt: skip
EXECUTORS = {"ThreadPoolExecutor", "ProcessPoolExecutor", "Pool", "ThreadPool", "TaskGroup"}


@dataclass(frozen=True)
class Wait:
    """A wait: where, in which function, and its source."""

    file: str
    function: str
    call: str
    line: int

    @property
    def name(self) -> tuple[str, str, str]:
        return self.file, self.function, self.call


def waits_in(source: str, file: str = "") -> Iterator[Wait]:
    """The waits in a source that have no deadline."""

    def walk(node: ast.AST, where: tuple[str, ...]) -> Iterator[Wait]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            where = (*where, node.name)
        if _endless(node):
            yield Wait(file, ".".join(where), ast.unparse(node), getattr(node, "lineno", 0))
        for child in ast.iter_child_nodes(node):
            yield from walk(child, where)

    yield from walk(ast.parse(source), ())


def all_waits() -> list[Wait]:
    """Those of all rooms."""
    files = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    assert len(files) > 25, "the rooms have moved"
    return [wait for path in files for wait in waits_in(path.read_text(encoding="utf-8"), _short(path))]


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT / "turnwise"))


def _endless(node: ast.AST) -> bool:
    if isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor):
        return True
    if isinstance(node, ast.With):  # the end of the block waits for all threads
        return any(isinstance(item.context_expr, ast.Call) and _called(item.context_expr) in EXECUTORS for item in node.items)
    if not isinstance(node, ast.Call):
        return False
    name = _called(node)
    if name in NEVER:
        return name != "shutdown" or not _false(node, "wait")
    if name == "get":
        return _get(node)
    if name == "wait":
        return not _timed(node, 99 if _ray(node) else 1 if isinstance(node.func, ast.Name) or _owner(node) == "futures" else 0)
    if name == "select":
        return not _timed(node, 3 if _owner(node) == "select" else 0)
    if name in ("run", "call"):
        return _owner(node) == "subprocess" and not _timed(node, 99)
    if name == "map":
        return _owner(node) in ("threads", "pool", "executor") and not _timed(node, 99)
    if name == "join" and node.args and not node.keywords and not _none(node.args[0]):
        return False  # of texts and paths, or with a time limit
    if name == "acquire" and (_false(node, "blocking") or (node.args and _constant(node.args[0], False))):
        return False
    return name in LIMITED and not _timed(node, LIMITED[name])


def _get(node: ast.Call) -> bool:
    """Of Ray: needs a limit by name. Of a queue: has no arguments, or says that it blocks. Others have a key, and do not wait."""
    if _ray(node):
        return not _timed(node, 99)
    blocks = not node.args or (isinstance(node.args[0], ast.Constant) and node.args[0].value is True)
    keys = {keyword.arg for keyword in node.keywords}
    return blocks and keys <= {"block", "timeout"} and not _false(node, "block") and not _timed(node, 1)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def _owner(node: ast.Call) -> str:
    """The name before the last dot; of `import_ray().get`, the function's."""
    value = node.func.value if isinstance(node.func, ast.Attribute) else None
    value = value.func if isinstance(value, ast.Call) else value
    return value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""


def _ray(node: ast.Call) -> bool:
    return _owner(node) in ("ray", "import_ray")


def _timed(node: ast.Call, place: int) -> bool:
    """Whether a call has a time limit that is not None: by name, or at this place."""
    given = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"] or node.args[place : place + 1]
    return bool(given) and not any(_none(value) for value in given)


def _none(value: ast.expr) -> bool:
    """Whether it is, or may be, the constant None."""
    return any(isinstance(part, ast.Constant) and part.value is None for part in [value, *_branches(value)])


def _branches(value: ast.expr) -> list[ast.expr]:
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else []


def _constant(value: ast.expr, wanted: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is wanted


def _false(node: ast.Call, name: str) -> bool:
    return any(keyword.arg == name and _constant(keyword.value, False) for keyword in node.keywords)
