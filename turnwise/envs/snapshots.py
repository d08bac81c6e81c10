"""Snapshots: the state of an attempt as a few kilobytes of text, so that another attempt can start from it.

    turnwise.snapshot 1 household 5d0c1f2e9a7b3c44        what it is, version, environment, checksum
    {"options": {…}, "state": {…}}                        one line of JSON

Reading one executes nothing. Damaged snapshots, and those of another version, another environment or other options are refused: a silent
guess would be a wrong state. Your own environment can use `pack` and `unpack` as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from turnwise.util.errors import TurnwiseError

SCHEMA = "turnwise.snapshot"
VERSION = 1  # raise it when a state of any environment changes its form
LONGEST_HEADER = 256


def pack(environment: str, state: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> bytes:
    """The snapshot of a state (JSON values). `options` are those of the environment that the state depends on."""
    try:
        content = {"options": dict(options or {}), "state": dict(state)}
        body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as error:
        raise TurnwiseError(f"environment {environment!r}: a state must be plain JSON values to be kept: {error}") from None
    return f"{SCHEMA} {VERSION} {environment} {_checksum(environment, body)}\n".encode() + body


def unpack(snapshot: Any, environment: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The state of a snapshot that `pack` made for the same environment with the same options; anything else is refused."""
    where = f"environment {environment!r}"
    if not isinstance(snapshot, bytes | bytearray | memoryview):
        raise TurnwiseError(f"{where}: a snapshot is bytes, not {type(snapshot).__name__}")
    data = bytes(snapshot)
    head = data[:LONGEST_HEADER].partition(b"\n")[0]
    words = head.decode("utf-8", "replace").split(" ")
    if words[0] != SCHEMA or len(words) != 4:
        raise TurnwiseError(f"{where}: these {len(data):,} bytes are not a snapshot. Restore what snapshot() of this environment returned")
    if words[1] != str(VERSION):
        raise TurnwiseError(f"{where}: a snapshot of version {words[1]}; this Turnwise reads version {VERSION}. Take the snapshot again")
    if words[2] != environment:
        raise TurnwiseError(f"{where}: this is a snapshot of environment {words[2]!r}. Restore it there")
    body = data[len(head) + 1 :]
    if words[3] != _checksum(environment, body):
        raise TurnwiseError(f"{where}: the snapshot is damaged ({len(data):,} bytes, the checksum differs). Take it again")
    with restoring(environment):
        content = json.loads(body)
        kept = content["options"]
        own = json.loads(json.dumps(dict(options or {})))
        for name in sorted({*kept, *own}):
            if name not in kept or name not in own or kept[name] != own[name]:
                theirs, ours = (f"{name}={options.get(name)!r}" for options in (kept, own))
                raise TurnwiseError(f"{where}: the snapshot was taken with {theirs}, this environment has {ours}. Use the same options")
        return dict(content["state"])


@contextmanager
def restoring(environment: str) -> Iterator[None]:
    """Turns the error of a state that does not have the expected form into one that says what to do."""
    try:
        yield
    except TurnwiseError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise TurnwiseError(f"environment {environment!r}: the snapshot is not of the expected form ({reason}). Take it again") from error


def _checksum(environment: str, body: bytes) -> str:
    return blake2b(f"{VERSION} {environment}\n".encode() + body, digest_size=8).hexdigest()
