"""Which earlier call a conversation continues.

The messages of a call and the message that was returned for it are hashed one after another, in a canonical form: content as text (null is
empty, parts are joined), the arguments of tool calls as JSON values, no other keys. A later call continues the one whose hash its own
messages have up to an assistant's message, the longest such part if there are several. Everything else is a different conversation: other
tools, another form of answer, a single changed character.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from turnwise.agent.dialogue import Said
from turnwise.agent.tool_calls import ToolCall
from turnwise.util.seeds import derive

MAIN = ""  # the line of conversation that an attempt begins with


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
        for place in range(len(said) - 1, -1, -1):
            if said[place].role == "assistant" and (nodes := self._nodes.get(digests[place + 1])):
                self._nodes.move_to_end(digests[place + 1])
                return next((node for node in nodes if not node.children), nodes[0]), place + 1
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
    found = [_digest(b"", _written([list(tools), request]))]
    for one in said:
        found.append(extended(found[-1], one))
    return found


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
