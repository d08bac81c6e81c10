"""Tools from Python functions: `my_tools.py` (every public function that the file defines) or `my_tools.py:name`.

A function gets its arguments by name and returns text, or a value that is shown as JSON. A parameter called `state` gets a dictionary that
belongs to the attempt; the model does not see it. An exception is shown to the model as one line and does not end the attempt.

A call with a time limit runs in a thread, which is left behind when the limit is over: Python cannot end it. A file whose functions hang
often therefore belongs into a process of its own, such as an MCP server.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from turnwise.config.kinds import Kind
from turnwise.config.loading import load_file, load_reference
from turnwise.config.references import check_unread
from turnwise.envs.blame import one_line
from turnwise.envs.tools.schemas import STATE, Tool, describe
from turnwise.util.errors import TurnwiseError

TOOL = Kind("tool", gives=("str", "int", "float", "bool", "dict", "list", "mapping", "none"))
LEFT_BEHIND = 8  # hanging threads of one process, from which on an attempt ends with a fault


class Hangs(TurnwiseError):
    """A tool did not return within its time limit."""


class FunctionTool:
    """One function as a tool."""

    def __init__(self, function: Callable[..., Any], name: str = ""):
        self.function, self.tool = function, describe(function, name)
        self._takes_state = STATE in inspect.signature(function).parameters

    def call(self, arguments: Mapping[str, Any], state: dict[str, Any], timeout: float | None) -> str:
        """What the model sees. Raises `Hangs` after the time limit."""
        given = dict(arguments) | ({STATE: state} if self._takes_state else {})
        try:
            return as_text(within(timeout, lambda: _returned(self.function(**given)), self.tool.name))
        except (Hangs, KeyboardInterrupt):
            raise
        except BaseException as error:  # also sys.exit: a tool must not end the run
            return f"Error: {one_line(error)}"


def _returned(value: Any) -> Any:
    """The value; of an async function what it returns in the end."""
    if not inspect.iscoroutine(value):
        return value
    import asyncio

    return asyncio.run(value)


_left: list[Thread] = []


def within(timeout: float | None, work: Callable[[], Any], name: str) -> Any:
    """The result of some work, or `Hangs`."""
    if timeout is None:
        return work()
    _left[:] = [thread for thread in _left if thread.is_alive()]
    if len(_left) >= LEFT_BEHIND:
        raise TurnwiseError(f"tool {name!r}: {len(_left)} calls of tools still hang in this process. Run such tools in an MCP server")
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run, daemon=True, name=f"tool {name}")
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        _left.append(thread)
        raise Hangs(f"tool {name!r} did not return within {timeout:g} s")
    if failed:
        raise failed[0]
    return found[0]


def as_text(value: Any) -> str:
    """A tool's result as text: JSON, unless it is text already."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def load_functions(given: str | Sequence[Any] | Callable[..., Any]) -> list[FunctionTool]:
    """The tools that an option names: references, or functions from Python."""
    entries: list[Any] = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return [tool for entry in entries for tool in _load(entry)]


def _load(entry: Any) -> list[FunctionTool]:
    if callable(entry):
        return [FunctionTool(entry)]
    if not isinstance(entry, str):
        raise TurnwiseError(f"tools: functions are named as my_tools.py or my_tools.py:name, not {entry!r}")
    if not entry.endswith(".py"):
        return [FunctionTool(load_reference(entry, TOOL))]
    check_unread(entry)
    module = load_file(Path(entry))
    own = [
        value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    if not own:
        raise TurnwiseError(f"{entry} defines no function: a tool is a function whose name does not begin with '_'")
    return [FunctionTool(function) for function in own]


__all__ = ["FunctionTool", "Hangs", "Tool", "as_text", "load_functions", "within"]
