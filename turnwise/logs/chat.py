"""Conversations as JSON lines: OpenAI's messages, one line per attempt, or one line per request with its response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from turnwise.logs.attempts import OUTCOMES, Attempt
from turnwise.logs.calls import Calls, chat, seconds
from turnwise.logs.files import Record
from turnwise.logs.messages import Message, messages_of

TASKS = ("task_id", "example_id", "instance_id", "problem_id", "question_id", "scenario_id", "prompt_id", "task_name", "task")  # ids first
NAMES = ("attempt_id", "attempt", "trajectory_id", "rollout_id", "run_id", "id")
SESSIONS = ("session_id", "conversation_id", "trace_id", *NAMES)  # what requests of one attempt share
CONTENT = ("messages", "conversations", "request", "response", "completion")
PARTS = ("metadata", "info", "scores", "evaluation", "metrics")  # where outcomes and names are, if not beside the messages


def is_chat(value: Any) -> bool:
    """Whether this is a line of such a log."""
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict) and ("role" in value[0] or "from" in value[0])
    return isinstance(value, dict) and (_parts(value) is not None or isinstance(_conversation(value), list))


def read(records: Iterable[Record]) -> Iterator[Attempt]:
    """The attempts of such lines. Requests with the same session are one attempt; other lines are one attempt each."""
    sessions: dict[str, Calls] = {}
    for record in records:
        line = record.value if isinstance(record.value, dict) else {"messages": record.value}
        parts = [line, *(line[key] for key in PARTS if isinstance(line.get(key), dict))]
        both = _parts(line)
        name = _first(parts, SESSIONS if both else NAMES) or record.where
        outcomes = {key: part[key] for part in reversed(parts) for key in part if key.lower() in OUTCOMES}
        fields = {key: value for key, value in line.items() if key not in CONTENT}
        if both is None:
            yield Attempt(name, messages_of(_conversation(line)), _first(parts, TASKS), outcomes, fields)
            continue
        if isinstance(line.get("completion"), (list, str)):  # a prompt with a completion that may have many turns
            yield Attempt(name, _given(both[0]) + _said(both[1]), _first(parts, TASKS), outcomes, fields)
            continue
        calls = sessions.setdefault(name, Calls())
        calls.model(seconds(line.get("created_at") or line.get("timestamp") or line.get("created")) or float(record.number), *both)
        calls.task = calls.task or _first(parts, TASKS)
        calls.outcomes |= {key: value for key, value in outcomes.items() if value is not None}
        calls.fields |= fields
    yield from (calls.attempt(name) for name, calls in sessions.items())


def _conversation(line: Mapping[str, Any]) -> Any:
    return next((line[key] for key in ("messages", "conversations", "conversation", "trajectory", "items") if key in line), None)


def _parts(line: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """The prompt and the response of a line that has them apart."""
    request, response = line.get("request", line.get("body")), line.get("response")
    if isinstance(request, dict) and isinstance(response, dict):
        return chat(request), chat(response.get("body", response), ("output",))
    if isinstance(line.get("completion"), (list, str)) and "prompt" in line:
        return line["prompt"], line["completion"]
    if isinstance(line.get("choices"), list) and "messages" in line:
        return line["messages"], chat(line)
    if isinstance(line.get("output"), list) and "input" in line:
        return line["input"], line["output"]
    return None


def _given(prompt: Any) -> list[Message]:
    messages = messages_of(prompt)
    for message in messages:
        message.given = message.role == "assistant"
    return messages


def _said(completion: Any) -> list[Message]:
    return [Message("assistant", completion)] if isinstance(completion, str) else messages_of(completion)


def _first(parts: list[Any], names: tuple[str, ...]) -> str | None:
    """The first of these names that a line has, as text."""
    for part in parts:
        for name in names:
            value = part.get(name)
            if isinstance(value, dict):
                value = value.get("id", value.get("name", value.get("key")))
            if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
                return str(value)
    return None
