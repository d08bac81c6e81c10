"""Tool calls in a model's text.

Two forms are read. Models of the Qwen and Hermes family write `<tool_call>{"name": …, "arguments": {…}}</tool_call>` once per call, perhaps
with text around it. Others write the same JSON bare: the whole answer is one object or a list of them, perhaps in a code fence, and the
arguments may be called `parameters`. A call of a tool that was not offered, or with arguments that are not a JSON object, is no call: it
stays in the text, and the problem is named. What stands in a thought is never a call.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from turnwise.agent.parse import BAD_ARGUMENTS, BAD_JSON, UNCLOSED_CALL, UNKNOWN_TOOL, split_thought
from turnwise.agent.text import well_formed

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FENCE = "```"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. `arguments` is JSON as text."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class CallsRead:
    """A response as text and calls. `problem` names the first thing that looked like a call and was none."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    problem: str = ""


def read_calls(text: str, names: Collection[str]) -> CallsRead:
    """Split a response into text and calls of the tools with these names. Without calls the text is returned unchanged."""
    _, closed, answer = split_thought(text)
    if not names or (not closed and len(answer) < len(text)):  # an unclosed thought is all thought
        return CallsRead(text)
    thought = text[: len(text) - len(answer)] if closed else ""
    calls, kept, problem = _tagged(answer, names)
    if not calls and not problem:
        bare, problem = _bare(answer, names)
        calls, kept = bare, "" if bare else answer
    if not calls:
        return CallsRead(text, (), problem)
    return CallsRead((thought + kept).rstrip(), tuple(calls), problem)  # what a stream has sent already must be its beginning


def written_call(call: ToolCall) -> str:
    """A call as the Qwen and Hermes family writes it."""
    return f'{OPENING}\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}\n{CLOSING}'


def _tagged(answer: str, names: Collection[str]) -> tuple[list[ToolCall], str, str]:
    """The calls between tags, the text without them, and the first problem."""
    calls: list[ToolCall] = []
    kept: list[str] = []
    problem, place = "", 0
    while (start := answer.find(OPENING, place)) >= 0:
        end = answer.find(CLOSING, start)
        if end < 0:
            problem = problem or UNCLOSED_CALL
            break
        call = _call(_loaded(answer[start + len(OPENING) : end]), names)
        after = end + len(CLOSING)
        if isinstance(call, ToolCall):
            calls.append(call)
            kept.append(answer[place:start])
        else:
            problem = problem or call
            kept.append(answer[place:after])
        place = after
    return calls, "".join([*kept, answer[place:]]), problem


def _bare(answer: str, names: Collection[str]) -> tuple[list[ToolCall], str]:
    """The calls of an answer that is nothing but JSON. JSON that does not name a tool is an answer like any other."""
    body = answer.strip()
    if body.startswith(FENCE) and body.endswith(f"\n{FENCE}"):
        first, _, rest = body.partition("\n")
        if first.rstrip() in (FENCE, f"{FENCE}json"):
            body = rest.removesuffix(FENCE).strip()
    if body[:1] not in ("{", "["):
        return [], ""
    value = _loaded(body)
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(one, dict) and _named(one) in names for one in values):
        return [], ""
    calls = [_call(one, names) for one in values]
    problem = next((one for one in calls if isinstance(one, str)), "")
    return ([], problem) if problem else ([one for one in calls if isinstance(one, ToolCall)], "")


def _loaded(text: str) -> Any:
    """A JSON value, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _named(value: dict[str, Any]) -> str:
    name = value["function"].get("name") if isinstance(value.get("function"), dict) else value.get("name")
    return name if isinstance(name, str) else ""


def _call(value: Any, names: Collection[str]) -> ToolCall | str:
    """The call that a JSON value describes, or why it is not a call."""
    if not isinstance(value, dict):
        return BAD_JSON
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name")
    if not isinstance(name, str) or name not in names:
        return UNKNOWN_TOOL
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):  # some models write the arguments as JSON inside a string
        arguments = _loaded(arguments)
    if not isinstance(arguments, dict):
        return BAD_ARGUMENTS
    try:
        return ToolCall(name, well_formed(json.dumps(arguments, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return BAD_ARGUMENTS
