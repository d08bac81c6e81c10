"""One form for the messages of every provider and service: who said what, which tools were called, what came back.

A log is untrusted: whatever has another form than expected is read as text or left out, and nothing is evaluated. Read are the messages of
OpenAI's Chat Completions and the items of its Responses, content blocks of Anthropic, parts of OpenTelemetry's GenAI conventions,
LangChain's messages (plain and serialised), and ShareGPT's. Images and audio become a word in brackets.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

LONGEST_ERROR = 300  # characters of an error message
LONGEST_TEXT = 200_000  # characters of a message; the rest is cut off
DEEPEST = 4  # lists of messages in lists of messages
DEEPEST_ARGUMENTS = 50
ROLES = {
    **{name: name for name in ("system", "user", "assistant", "tool")},
    **dict.fromkeys(("developer", "SystemMessage"), "system"),
    **dict.fromkeys(("human", "HumanMessage", "HumanMessageChunk"), "user"),
    **dict.fromkeys(("ai", "gpt", "model", "AIMessage", "AIMessageChunk", "agent"), "assistant"),
    **dict.fromkeys(("function", "observation", "ToolMessage", "FunctionMessage"), "tool"),
}
ERROR_TEXT = re.compile(
    r"(?:\x1b\[[\d;]*m|[\W_])*(?:[\w.]*(?:error|exception)\b|err\b|fail(?:ed|ure)\b|fatal\b|traceback\b|invalid\b|unauthori[sz]ed\b|"
    r"forbidden\b|(?:permission|access) denied|timed? ?out\b|unable to\b|cannot\b|could not\b|no such\b|not found\b|unknown \w+)",
    re.IGNORECASE,
)
EXIT_CODE = re.compile(r"\b(?:exit(?:ed with)?|return) ?(?:code|status)\W{1,3}-?[1-9]\d*")
CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
JSON_ERROR = re.compile(r'"(?:error|errors|status|success|ok|isError|is_error)"')


class Call(NamedTuple):
    """A tool that the agent called."""

    name: str
    arguments: dict[str, Any]
    id: str = ""

    def __str__(self) -> str:
        return f"{self.name} {canonical(self.arguments)}"


@dataclass(slots=True)
class Message:
    """`role`: system, user, assistant or tool. Of a tool's result, `call` is the id of its call and `error` says what went wrong.
    `given`: an assistant's message that was part of the prompt. `action` and `anchor` are known where an environment of Turnwise was
    played."""

    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    call: str = ""
    error: str | None = None
    given: bool = False
    time: float | None = None
    reward: float = 0.0
    action: str | None = None
    anchor: Any = None


def messages_of(value: Any, depth: int = 0) -> list[Message]:
    """The messages in a text, a message, or a list of messages."""
    if isinstance(value, dict):
        return _read(value)
    if isinstance(value, list) and depth < DEEPEST:
        return [message for item in value for message in messages_of(item, depth + 1)]
    return [Message("user", value[:LONGEST_TEXT])] if isinstance(value, str) and value else []


def _read(item: Mapping[str, Any]) -> list[Message]:
    if "kwargs" in item and isinstance(item["kwargs"], dict) and items_of(item.get("id")):  # LangChain, serialised
        item = {**item["kwargs"], "type": item["id"][-1], "role": None}
    elif "data" in item and isinstance(item["data"], dict) and str(item.get("type")) in ROLES:
        item = {**item["data"], "type": item["type"]}
    kind = str(item.get("type") or "")
    role = ROLES.get(str(item.get("role") or item.get("from") or kind))
    if role is None or kind.endswith(("_call", "_call_output")):
        return _item(kind, item)
    text = item.get("content")
    calls: list[Call] = []
    inner: list[Message] = []
    if not isinstance(text, str):
        parts = _first(item, "content", "parts", "value", "message")
        texts: list[str] = []
        for part in parts if isinstance(parts, list) else [parts]:
            _part(part, texts, calls, inner)
        text = "\n".join([each for each in texts if each])
    if inner and not (text or calls or item.get("tool_calls")):
        return inner
    time = number_of(_first(item, "timestamp", "created_at"))
    message = Message(role, text[:LONGEST_TEXT], time=time, reward=number_of(item.get("reward")) or 0.0)
    if role == "tool":
        message.call = str(item.get("tool_call_id") or item.get("call_id") or item.get("id") or "")
        message.error = error_of(message.text, item.get("status") == "error" or item.get("is_error") is True)
    elif role == "assistant":
        calls += [_call(call) for call in items_of(item.get("tool_calls")) if isinstance(call, dict)]
        message.calls = tuple(calls)
    return [message, *inner]


def _first(item: Mapping[str, Any], *names: str) -> Any:
    """The value of the first of these names that has one."""
    for name in names:
        if (value := item.get(name)) is not None:
            return value
    return None


def _item(kind: str, item: Mapping[str, Any]) -> list[Message]:
    """An item of OpenAI's Responses that is not a message: a call, or what a call returned."""
    messages = []
    call = str(item.get("call_id") or item.get("id") or "")
    if kind.endswith("_call"):
        arguments = _first(item, "arguments", "input", "action", "queries")
        messages.append(Message("assistant", calls=(Call(str(item.get("name") or kind), arguments_of(arguments), call),)))
    if kind.endswith("_call_output") or (messages and _first(item, "output", "error") is not None):
        text = _text(item.get("output") or item.get("error"))
        messages.append(Message("tool", text, call=call, error=error_of(text, item.get("error") is not None)))
    return messages


def _part(part: Any, texts: list[str], calls: list[Call], inner: list[Message]) -> None:
    """One part of a message's content: text, a call, or the result of a call, which is a message of its own."""
    if isinstance(part, str):
        texts.append(part)
    elif isinstance(part, dict):
        kind = str(part.get("type") or "")
        if kind in ("tool_use", "tool_call"):
            calls.append(_call(part))
        elif kind in ("tool_result", "tool_call_response"):
            text = _text(_first(part, "content", "response", "result"))
            call = str(part.get("tool_use_id") or part.get("id") or "")
            inner.append(Message("tool", text, call=call, error=error_of(text, part.get("is_error") is True)))
        elif kind not in ("thinking", "reasoning", "redacted_thinking"):
            said = part.get("text", part.get("content", part.get("refusal")))
            texts.append(said if isinstance(said, str) else f"[{kind or 'part'}]")


def _call(call: Mapping[str, Any]) -> Call:
    function = call["function"] if isinstance(call.get("function"), dict) else call
    name = function.get("name") or function.get("function_name") or "?"
    arguments = arguments_of(_first(function, "arguments", "args", "input"))
    return Call(str(name), arguments, str(call.get("id") or call.get("tool_call_id") or ""))


def arguments_of(value: Any) -> dict[str, Any]:
    """A tool's arguments as a dictionary: models write JSON, and sometimes something else."""
    value = loaded(value)
    if _deeper(value, DEEPEST_ARGUMENTS):
        return {"input": "[nested too deeply]"}
    if isinstance(value, dict):
        return dict(value)
    return {} if value is None or value == "" else {"input": value}


def _deeper(value: Any, levels: int) -> bool:
    """Whether a value is nested more deeply than that."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(each, levels - 1) for each in inner if isinstance(each, (dict, list)))


def canonical(value: Any) -> str:
    """Equal values as equal JSON."""
    try:
        return CANONICAL.encode(value)
    except RecursionError:
        return "[nested too deeply]"


def loaded(value: Any) -> Any:
    """The structure in a text of JSON; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def number_of(value: Any) -> float | None:
    """A finite number; None for anything else. JSON has integers of any size."""
    try:
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
    except OverflowError:
        return None


def fields_of(value: Any) -> Mapping[str, Any]:
    """A JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def items_of(value: Any) -> list[Any]:
    """A JSON array; an empty one for anything else."""
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    """What a tool returned, as text: parts are joined, anything else is JSON."""
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    if isinstance(value, list) and value and all(isinstance(part, (str, dict)) for part in value):
        texts: list[str] = []
        for part in value:
            _part(part, texts, [], [])
        return "\n".join(texts)[:LONGEST_TEXT]
    return "" if value is None else canonical(value)[:LONGEST_TEXT]


def error_of(text: str, flagged: bool = False) -> str | None:
    """The error message in what a tool returned, None if it does not look like an error: a flag of the log, a text that begins like an
    error, an exit code other than 0, or JSON that says so."""
    if not flagged and text[:1] in "{[" and JSON_ERROR.search(text, 0, 20_000):
        return _error_in_json(text)
    if not (flagged or ERROR_TEXT.match(text, 0, LONGEST_ERROR) or _exit_code(text[-LONGEST_ERROR:].lower())):
        return None
    lines = [line for line in text.strip().splitlines() if line.strip()] or ["error"]
    return lines[-1 if lines[0].startswith("Traceback") else 0].strip()[:LONGEST_ERROR]


def _exit_code(end: str) -> bool:
    return ("exit" in end or "return" in end) and EXIT_CODE.search(end) is not None  # a search alone takes ten times as long


def _error_in_json(text: str) -> str | None:
    value = fields_of(loaded(text))
    told = value.get("error") or value.get("errors")
    failed = value.get("status") in ("error", "failed", "failure") or value.get("success") is False or value.get("ok") is False
    if not (told or failed or value.get("isError") is True or value.get("is_error") is True):
        return None
    if isinstance(told, dict):
        told = told.get("message") or told.get("type") or told
    told = told if told and told is not True else value.get("message") or value.get("detail") or "error"
    return (told if isinstance(told, str) else canonical(told))[:LONGEST_ERROR]
