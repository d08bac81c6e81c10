"""The calls of a program: what is recorded of them, what they may use, and which earlier call a conversation continues.

There is one `Call` per sampled response and one `Recorder` per attempt. Token ids and log-probs are those of the engine. A call whose
conversation continues an earlier one names it as `parent`, and its prompt ids begin with that call's prompt and response ids. So the calls
of an attempt are a forest; `chains` splits it into lines of calls, each call in exactly one of them.

To find the parent, the messages of a call and the message that was returned for it are hashed one after another, in a canonical form:
content as text (null is empty, parts are joined), the arguments of tool calls as JSON values, no other keys. A later call continues the one
whose hash its own messages have up to an assistant's message, the longest such part if there are several. Everything else is a different
conversation: other tools, another form of answer, a single changed character.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any

from turnwise.agent.dialogue import Said
from turnwise.agent.tool_calls import ToolCall
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

Json = dict[str, Any]
MAIN = ""  # the line of conversation that an attempt begins with


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


@dataclass(slots=True)
class Call:
    """One call. `messages` and `tools` are as the client sent them, in the form of chat completions; `message` is the assistant's message
    as it was returned, and `text` the whole sampled text. `stop_reason` is the engine's: stop, length, rule, refused or fault; it is empty
    while the call runs. `depth` counts the calls before it in its conversation. `delivered` is false if the client had gone before the
    response was ready. `problem` says what was wrong with the response: a tool call that could not be read, JSON against its schema.
    `forced` counts the tokens at the end of the prompt that begin the response for the model, when a tool call is required."""

    number: int
    parent: int | None
    messages: list[Json]
    tools: list[Json]
    prompt_ids: list[int]
    response_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    version: int = -1
    stop_reason: str = ""
    message: Json = field(default_factory=dict)
    text: str = ""
    anchor: str | None = None
    reward: float = 0.0
    notes: list[str] = field(default_factory=list)
    depth: int = 0
    seed: int = 0
    id: str = ""
    form: str = "chat"
    delivered: bool = True
    problem: str = ""
    forced: int = 0
    reports: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether a response was sampled."""
        return bool(self.response_ids)


@dataclass(slots=True)
class Recorder:
    """One attempt. `calls` are in the order of arrival. `reward` adds to the last response that was sampled, or to the one that is named;
    what comes before the first response is in `early_reward`. `stop` says why calls were refused, if a limit was reached. `faults` are the
    engine's messages about calls that it failed on."""

    attempt: str
    key: str
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    calls: list[Call] = field(default_factory=list)
    early_reward: float = 0.0
    rewards: int = 0  # how many were given
    note_bytes: int = 0
    next_anchor: str | None = None
    stop: str = ""
    faults: list[str] = field(default_factory=list)
    running: int = 0
    sampled: int = 0
    closed: bool = False
    last: int | None = None  # the call that was sampled last

    def finished(self) -> list[Call]:
        """The calls whose responses the program received."""
        return [call for call in self.calls if call.done and call.delivered]

    def chains(self) -> list[list[Call]]:
        """The received calls as lines of conversation, in the order of their first calls. A call continues the line of its parent if it is
        the first to do so; a second one starts a new line, whose prompt still begins with the parent's tokens."""
        line_of: dict[int, list[Call]] = {}
        lines: list[list[Call]] = []
        for call in self.finished():
            before = None if call.parent is None else line_of.get(call.parent)
            if before is None or before[-1].number != call.parent:
                before = []
                lines.append(before)
            before.append(call)
            line_of[call.number] = before
        return lines

    def add_reward(self, value: float, note: str = "", call: str | None = None) -> bool:
        """Add to the reward of a call: the one with this response id, or the last sampled one. False if there is no such id."""
        number = self.last
        if call is not None:
            number = next((one.number for one in self.calls if one.id == call), None)
            if number is None:
                return False
        self.rewards += 1
        self.note_bytes += len(note.encode())
        if number is None:
            self.early_reward += value
            return True
        self.calls[number].reward += value
        self.calls[number].notes += [note] if note else []
        return True

    @property
    def reward(self) -> float:
        """The sum of all rewards so far."""
        return self.early_reward + sum(call.reward for call in self.calls)


@dataclass(slots=True, eq=False)
class Node:
    """A sampled response in its conversation. `line` names the line of calls that it belongs to, from which its seed is derived."""

    number: int
    prompt_ids: list[int]
    response_ids: tuple[int, ...]
    sequence: int
    depth: int
    line: str
    children: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)  # as sent, and the one that was returned


class Conversations:
    """The conversations of one attempt. With `keep`, the oldest are forgotten if there are more than that."""

    def __init__(self, keep: int = 0):
        self._keep = keep
        self._nodes: OrderedDict[bytes, list[Node]] = OrderedDict()
        self._size = 0
        self._lines: dict[bytes, int] = {}
        self._begun = False

    def find(self, digests: Sequence[bytes], said: Sequence[Said]) -> tuple[Node | None, int]:
        """The call that these messages continue, and how many of them it covers; None and 0 if there is none. If several calls were the
        same and got the same answer, one that was not continued yet is taken."""
        for index in range(len(said) - 1, -1, -1):
            if said[index].role == "assistant" and (nodes := self._nodes.get(digests[index + 1])):
                self._nodes.move_to_end(digests[index + 1])
                return next((node for node in nodes if not node.children), nodes[0]), index + 1
        return None, 0

    def line(self, parent: Node | None, digest: bytes, choice: int) -> str:
        """The line that a new call belongs to: its parent's if it is the first to continue it, otherwise a new one, named after the
        conversation so far and how many equal ones there were before."""
        if choice == 0 and parent is not None and not parent.children:
            return parent.line
        if choice == 0 and parent is None and not self._begun:
            self._begun = True
            return MAIN
        again = self._lines[digest] = self._lines.get(digest, -1) + 1
        if self._keep and len(self._lines) > self._keep:
            self._lines.pop(next(iter(self._lines)))
        return f"{digest.hex()}.{again}"

    def add(self, digest: bytes, node: Node) -> list[Node]:
        """Remember a response under the hash of its conversation, its own message included. Returns what was forgotten instead."""
        self._nodes.setdefault(digest, []).append(node)
        self._size += 1
        gone: list[Node] = []
        while self._keep and self._size > self._keep:
            _, nodes = self._nodes.popitem(last=False)
            self._size -= len(nodes)
            gone += nodes
        return gone


def seed_of(seed: int, line: str, depth: int) -> int:
    """The seed of a call. On the main line it is that of the same turn in an environment."""
    return derive(seed, depth) if line == MAIN else derive(seed, depth, line)


def digests(said: Sequence[Said], tools: Sequence[Mapping[str, Any]], request: str) -> list[bytes]:
    """The hashes of a conversation: before its first message, and after each."""
    hashes = [_digest(b"", _written([list(tools), request]))]
    for one in said:
        hashes.append(extended(hashes[-1], one))
    return hashes


def extended(digest: bytes, said: Said) -> bytes:
    """The hash of a conversation with one more message."""
    return _digest(digest, canonical(said))


def canonical(said: Said) -> str:
    """A message as it is compared: different texts for different messages, because lengths stand before what they delimit. The name of an
    assistant does not count: clients add one."""
    name = "" if said.role == "assistant" else said.name
    calls = _written([[call.id, call.name, canonical_arguments(call)] for call in said.calls]) if said.calls else ""
    return f"{said.role} {len(said.content)} {len(said.call_id)} {len(name)} {said.content}{said.call_id}{name}{calls}"


def canonical_arguments(call: ToolCall) -> str:
    """Arguments as JSON in one form if they are JSON, so that spaces, order and escapes do not count."""
    try:
        return "=" + _written(json.loads(call.arguments))
    except (ValueError, RecursionError):
        return "~" + call.arguments


def _digest(before: bytes, value: str) -> bytes:
    return blake2b(before + value.encode("utf-8", "surrogatepass"), digest_size=16).digest()


_written = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
