"""Calls into a Java process that runs py4j's server: its text protocol, with a time limit for every answer.

py4j's own client resends commands whose answer was lost, logs tracebacks, and fetches a list with one request per item. Here a command is
sent once, a lost or late answer is an error, and a list of texts takes three requests.
"""

from __future__ import annotations

import socket
import time
from typing import Any

MOST = 64 * 2**20  # bytes of an answer
SMALLEST, LARGEST = -(2**31), 2**31 - 1
BETWEEN = "\x1f"  # joins the items of a list: no game prints it


class Ref(str):
    """The name of an object in the Java process."""


class JavaError(Exception):
    """An exception of the program in the Java process."""


class Wire:
    """One connection. `ask` sends a command and waits for its answer, at most `seconds`: TimeoutError after that, OSError or EOFError if
    the other side is gone."""

    def __init__(self, port: int, token: str, seconds: float):
        self._socket = socket.create_connection(("127.0.0.1", port), seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.ask(f"A\n{token}\n", seconds)

    def ask(self, command: str, seconds: float) -> Any:
        until = time.monotonic() + seconds
        self._socket.settimeout(seconds)
        self._socket.sendall(command.encode("utf-8", "replace"))
        while b"\n" not in self._buffer:
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            read = self._socket.recv(1 << 16)
            self._buffer += read
            if not read or len(self._buffer) > MOST:
                raise EOFError
        line, _, self._buffer = self._buffer.partition(b"\n")
        return self._read(line.decode("utf-8", "replace"), seconds)

    def _read(self, answer: str, seconds: float) -> Any:
        answer = answer.removeprefix("!")
        if answer[:1] == "y":
            return value(answer[1:])
        found = value(answer[1:])
        if isinstance(found, Ref):
            found = self.call(found, "toString", seconds=seconds)
        raise JavaError(str(found or "an error without a message").partition("\n")[0][:300])

    def call(self, target: str, method: str, *arguments: Any, seconds: float) -> Any:
        """Call a method of an object, or of a class if the target is `z:` and its name."""
        return self.ask(f"c\n{target}\n{method}\n{''.join(map(part, arguments))}e\n", seconds)

    def new(self, name: str, *arguments: Any, seconds: float) -> Ref:
        found = self.ask(f"i\n{name}\n{''.join(map(part, arguments))}e\n", seconds)
        assert isinstance(found, Ref)
        return found

    def field(self, target: str, name: str, *, seconds: float) -> Any:
        """A field of an object, or of a class if the target is `z:` and its name."""
        if target.startswith("z:"):
            return self.ask(f"r\nm\n{target[2:]}\n{name}\ne\n", seconds)
        return self.ask(f"f\ng\n{target}\n{name}\ne\n", seconds)

    def texts(self, target: str, method: str, *arguments: Any, seconds: float) -> list[str]:
        """The list of texts that a method returns."""
        found = self.call(target, method, *arguments, seconds=seconds)
        joined = str(self.call("z:java.lang.String", "join", BETWEEN, found, seconds=seconds))
        self.forget(found, seconds=seconds)
        return joined.split(BETWEEN) if joined else []

    def forget(self, ref: str, *, seconds: float) -> None:
        """Let the other side free an object."""
        self.ask(f"m\nd\n{ref}\ne\n", seconds)

    def close(self) -> None:
        self._socket.close()


def part(argument: Any) -> str:
    """An argument as the protocol writes it, with its line end."""
    if isinstance(argument, Ref):
        return f"r{argument}\n"
    if isinstance(argument, bool):
        return f"b{argument}\n"
    if isinstance(argument, int):
        return f"{'i' if SMALLEST <= argument <= LARGEST else 'L'}{argument}\n"
    text = str(argument).replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
    return f"s{text}\n"


def value(answer: str) -> Any:
    """The value in an answer: a number, a text, a truth value, a name of an object, or None."""
    kind, rest = answer[:1], answer[1:]
    if kind in ("i", "L"):
        return int(rest)
    if kind == "d":
        return float(rest)
    if kind == "b":
        return rest.lower() == "true"
    if kind == "s":
        return _unescaped(rest)
    return Ref(rest) if kind in tuple("rtlhag") and rest else None


def _unescaped(text: str) -> str:
    halves = text.split("\\\\")
    return "\\".join(half.replace("\\r", "\r").replace("\\n", "\n") for half in halves)
