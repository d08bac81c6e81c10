"""What is recorded of a program that calls the model: one `Call` per sampled response, one `Recorder` per attempt.

Token ids and log-probs are those of the engine. A call whose conversation continues an earlier one names it as `parent`, and its prompt ids
begin with that call's prompt and response ids. So the calls of an attempt are a forest; `chains` splits it into lines of calls, each
call in exactly one of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.engines.serve.limits import Limits

Json = dict[str, Any]


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
    started: float = field(default_factory=time.monotonic)
    ended: float = 0.0

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
    early_notes: list[str] = field(default_factory=list)
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
        found: list[list[Call]] = []
        for call in self.finished():
            before = None if call.parent is None else line_of.get(call.parent)
            if before is None or before[-1].number != call.parent:
                before = []
                found.append(before)
            before.append(call)
            line_of[call.number] = before
        return found

    def add_reward(self, value: float, note: str = "", call: str | None = None) -> bool:
        """Add to the reward of a call: the one with this response id, or the last sampled one. False if there is no such id."""
        place = self.last
        if call is not None:
            place = next((one.number for one in self.calls if one.id == call), None)
            if place is None:
                return False
        self.rewards += 1
        self.note_bytes += len(note.encode())
        if place is None:
            self.early_reward += value
            self.early_notes += [note] if note else []
            return True
        self.calls[place].reward += value
        self.calls[place].notes += [note] if note else []
        return True

    @property
    def reward(self) -> float:
        """The sum of all rewards so far."""
        return self.early_reward + sum(call.reward for call in self.calls)

    @property
    def tokens(self) -> int:
        """How many tokens were sampled."""
        return self.sampled


def path_to(calls: Sequence[Call], number: int) -> list[Call]:
    """The calls of a conversation from its first one to this one."""
    found: list[Call] = []
    place: int | None = number
    while place is not None:
        found.append(calls[place])
        place = calls[place].parent
    return found[::-1]
