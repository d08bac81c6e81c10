"""What an attempt and the endpoint as a whole may use."""

from __future__ import annotations

from dataclasses import dataclass, fields

from turnwise.util.errors import TurnwiseError


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one attempt: `calls` and sampled `tokens` (0: no limit; calls at the same time may pass it together), `at_once` calls that run
    at the same time, `choices` per call (`n`), `rewards` that are posted and `note_bytes` of all notes with them.
    Of one request: `body_bytes`, `messages`, `tools`, `schema_bytes` of its tools and its schema together; `header_seconds` until its
    headers and `read_seconds` until its body must have arrived; `prepare_seconds` until it must be read and tokenised; `write_seconds` that
    a client may take to read one part of an answer. Of the endpoint: `connections` that are open, and `waiting` calls of all attempts."""

    calls: int = 1000
    tokens: int = 0
    at_once: int = 64
    choices: int = 16
    rewards: int = 10_000
    note_bytes: int = 1 << 20
    body_bytes: int = 8 << 20
    messages: int = 10_000
    tools: int = 1000
    schema_bytes: int = 1 << 20
    header_seconds: float = 10.0
    read_seconds: float = 30.0
    prepare_seconds: float = 60.0
    write_seconds: float = 30.0
    connections: int = 2048
    waiting: int = 4096

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value < 0 or (value == 0 and one.name != "tokens"):
                raise TurnwiseError(f"limits of the endpoint: {one.name} must be above 0, not {value!r}")
