"""What a recipe says about an MCP server: a command to start, or the URL of one that runs; what it may see; how long it lives."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from turnwise.util.errors import TurnwiseError, unknown_name

PASSED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")  # variables that any program may see
REUSE = ("auto", "always", "never")


@dataclass(frozen=True)
class ServerSettings:
    """One MCP server.

    command    the program and its arguments (stdio)
    url        of a server that runs already (streamable HTTP); one of the two is needed
    variables  further environment variables that the program may see, by name; their values are not in the recipe
    set        environment variables with a value
    headers    HTTP headers: the name of the environment variable that holds the value
    cwd        the folder in which the program is started
    tools      only these tools; none: all
    reuse      "always": one server for all attempts of a worker; "never": one per attempt; "auto": one for all if every tool is marked as
               read-only (`readOnlyHint`)
    memory_mb  the most memory that the program may allocate
    """

    command: tuple[str, ...] = ()
    url: str = ""
    variables: tuple[str, ...] = ()
    set: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None
    tools: tuple[str, ...] | None = None
    reuse: str = "auto"
    memory_mb: int | None = None

    @property
    def name(self) -> str:
        """How messages call it."""
        return self.url or " ".join(self.command)[:120]

    @property
    def words(self) -> list[str]:
        """The command; `python` is the one that runs this."""
        return [sys.executable if self.command[0] == "python" else self.command[0], *self.command[1:]]

    def environment(self) -> dict[str, str]:
        """All that the program sees of this process's environment variables."""
        seen = {name: os.environ[name] for name in (*PASSED_ON, *self.variables) if name in os.environ}
        return seen | dict(self.set)

    def http_headers(self) -> dict[str, str]:
        """The headers with their values, which are read now and stored nowhere."""
        missing = [variable for _, variable in self.headers if variable not in os.environ]
        if missing:
            raise TurnwiseError(f"MCP server {self.name}: the environment variable {missing[0]} is not set (servers.headers names it)")
        return {header: os.environ[variable] for header, variable in self.headers}


def read_servers(given: str | Mapping[str, Any] | Sequence[Any] | None) -> list[ServerSettings]:
    """The servers that an option names: an URL, a table, or a list of them."""
    if given is None:
        return []
    entries = [given] if isinstance(given, str | Mapping) else list(given)
    return [_read(entry) for entry in entries]


def _read(entry: Any) -> ServerSettings:
    if isinstance(entry, str):
        entry = {"url": entry}
    if not isinstance(entry, Mapping):
        raise TurnwiseError(f'tools: a server is a URL or a table such as {{command = ["python", "server.py"]}}, not {entry!r}')
    known = [field.name for field in fields(ServerSettings)]
    for name in entry:
        if name not in known:
            raise unknown_name("setting of an MCP server:", str(name), known)
    values: dict[str, Any] = dict(entry)
    if isinstance(values.get("command"), str):
        raise TurnwiseError(f'tools: the command of a server is a list, as ["python", "server.py"], not {values["command"]!r}')
    for name in ("command", "variables", "tools"):
        if isinstance(values.get(name), list | tuple):
            values[name] = tuple(map(str, values[name]))
    for name in ("set", "headers"):
        values[name] = tuple(sorted((str(key), str(value)) for key, value in dict(values.get(name) or {}).items()))
    found = ServerSettings(**values)
    if bool(found.command) == bool(found.url):
        raise TurnwiseError(f'tools: a server needs either command = ["program", "argument"] or url = "http://…", got {dict(entry)!r}')
    if found.url and not found.url.startswith(("http://", "https://")):
        raise TurnwiseError(f"tools: the URL of a server starts with http:// or https://, not {found.url!r}")
    if found.reuse not in REUSE:
        raise unknown_name("reuse of an MCP server:", str(found.reuse), REUSE)
    return found
