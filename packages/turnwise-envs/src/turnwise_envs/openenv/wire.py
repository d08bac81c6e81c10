"""The protocol of an OpenEnv server, one exchange at a time.

A session over a WebSocket (`/ws`) has a separate environment on the server: messages `{"type": "reset" | "step", "data": …}`, answers
`{"type": "observation" | "error", "data": …}`. (With plain HTTP, OpenEnv's own server makes a new environment for every request.)
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from turnwise.util.errors import TurnwiseError
from turnwise.util.secret import redact
from turnwise.util.transport import Failure, Transport
from turnwise_envs.shared.packages import load

LARGEST_MESSAGE = 64 * 2**20
LONGEST_LIST = 20_000  # tasks: a longer list is not read, and its tasks have numbers
LONGEST_GOODBYE = 2.0  # seconds that a server may take to close a session
HTTP_OF = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


class Lost(Exception):
    """No answer came. `passing`: the same request may succeed later."""

    def __init__(self, message: str, passing: bool = True):
        super().__init__(message)
        self.passing = passing


class Refused(Exception):
    """The server answered that the action is not one of its actions."""


class Broken(Exception):
    """The environment on the server raised an error."""


class Session:
    """A WebSocket session. After a connection error it cannot be used any more: make another."""

    def __init__(self, url: str, timeout: float, key: str):
        client = load("websockets.sync.client", "the adapter for OpenEnv", "openenv")
        self._error: type[Exception] = load("websockets.exceptions", "the adapter for OpenEnv", "openenv").WebSocketException
        self._timeout = timeout
        address = f"ws{http_url(url).removeprefix('http')}/ws"
        headers = {"Authorization": f"Bearer {key}"} if key else None
        self._line = contextlib.ExitStack()
        parts = urlsplit(http_url(url))
        until = time.monotonic() + timeout
        try:
            # Our own socket: the client then follows no redirect, which would send the key to another server.
            self._raw = socket.create_connection((parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)), timeout)
            left = max(0.001, until - time.monotonic())
            limits = {"open_timeout": left, "close_timeout": min(timeout, LONGEST_GOODBYE), "max_size": LARGEST_MESSAGE}
            options = limits | {"proxy": None, "additional_headers": headers, "sock": self._raw}
            self._socket = self._line.enter_context(client.connect(address, **options))
        except (OSError, self._error, ValueError) as error:  # a timeout is also an OSError; a redirect is a ValueError
            if hasattr(self, "_raw"):
                self._raw.close()
            raise Lost(redact(f"no connection to {address}: {type(error).__name__}: {error}"), not isinstance(error, ValueError)) from None

    def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return self._exchange({"type": "reset", "data": dict(data)})

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        return self._exchange({"type": "step", "data": dict(action)})

    def _exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        watchman = threading.Timer(self._timeout, self._cut)  # sending has no time limit: a server may read nothing
        watchman.daemon = True
        watchman.start()
        try:
            with contextlib.suppress(self._error):  # a closed connection may still hold the server's reason
                self._socket.send(json.dumps(message))
            watchman.cancel()
            answer = json.loads(self._socket.recv(timeout=self._timeout))
        except TimeoutError:
            raise Lost(f"no answer within {self._timeout:g} s") from None
        except (OSError, self._error) as error:
            raise Lost(f"the connection ended: {type(error).__name__}: {error}") from None
        except ValueError as error:
            raise Lost(f"an answer that is not JSON: {error}", passing=False) from None
        finally:
            watchman.cancel()
        kind, data = (answer.get("type"), answer.get("data")) if isinstance(answer, dict) else (None, None)
        if kind == "observation" and isinstance(data, dict):
            return data
        if kind != "error" or not isinstance(data, dict):
            raise Lost(f"an answer of another form: {str(answer)[:200]}", passing=False)
        words, code = str(data.get("message", "")), data.get("code")
        if code == "VALIDATION_ERROR":
            raise Refused(_details(data.get("errors")) or words)
        if code == "EXECUTION_ERROR":
            raise Broken(words)
        raise Lost(f"{code}: {words}", passing=code == "CAPACITY_REACHED")

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError, self._error):
            self._socket.send(json.dumps({"type": "close"}))
        with contextlib.suppress(OSError, self._error):
            self._line.close()


def http_url(url: str) -> str:
    """The server's address as http(s)://…, whatever was given: http, https, ws or wss, with or without /ws at the end."""
    parts = urlsplit(url)
    if parts.scheme not in HTTP_OF or not parts.hostname:
        raise TurnwiseError(f"openenv: {redact(url)!r} is not the address of a server. One looks like http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise TurnwiseError(
            f"openenv: leave user:password@ out of {redact(url)!r}; a key is read from an environment variable (key_variable)"
        )
    return f"{HTTP_OF[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/ws')}"


def action_schema(url: str, timeout: float, key: str) -> dict[str, Any]:
    """The JSON schema of the server's actions; empty if it gives none."""
    try:
        found = Transport(http_url(url), key, timeout).get("schema")
    except Failure as failure:
        if failure.status >= 400:
            return {}
        raise Lost(f"{http_url(url)}/schema: {failure}", failure.passing) from None
    schema = found.get("action")
    return schema if isinstance(schema, dict) else {}


class TaskLists:
    """The server's lists of tasks (`/{env}/splits`, `/{env}/num_tasks`, `/{env}/tasks`), if it has them."""

    def __init__(self, url: str, timeout: float, key: str):
        self._transport = Transport(http_url(url), key, timeout)
        self._name = ""

    def splits(self) -> dict[str, str]:
        """The names of the splits and their types; empty if the server has no such lists."""
        try:
            names = self._transport.get("list_environments", list)
            self._name = quote(str(names[0]), safe="") if names else ""
            found = self._transport.get(f"{self._name}/splits", list) if self._name else []
        except Failure as failure:
            refused = failure.status == 501 or (400 <= failure.status < 500 and not failure.passing and failure.status not in (401, 403))
            if refused or "not a JSON list" in str(failure):
                return {}  # an older server, or one whose environment has no lists
            raise Lost(str(failure), failure.passing) from None
        rows = [row if isinstance(row, dict) else {"name": row} for row in found]
        return {str(row["name"]): str(row.get("type") or row["name"]) for row in rows if "name" in row}

    def tasks(self, split: str) -> tuple[int, list[Any]]:
        """How many tasks a split has, and what is known of them, which may be less."""
        try:
            count = self._transport.post(f"{self._name}/num_tasks", {"split": split}).get("num_tasks")
            if isinstance(count, int) and count > LONGEST_LIST:
                return count, []
            listed = self._transport.post(f"{self._name}/tasks", {"split": split}).get("tasks")
        except Failure as failure:
            raise Lost(f"its list of tasks: {failure}", failure.passing) from None
        known = listed if isinstance(listed, list) else []
        return (count if isinstance(count, int) else len(known)), known


def _details(errors: Any) -> str:
    """What the server's check of an action found, in one line."""
    if not isinstance(errors, list):
        return ""
    found = [f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg', '')}" for error in errors if isinstance(error, dict)]
    return "; ".join(found)[:500]
