"""The messages of an attempt from its calls of a model and of tools, which services log one by one and in any order.

A call of a model repeats the conversation so far. Only what is new since the last response is kept of it, so that memory grows with the
turns and not with their square.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from turnwise.logs.attempts import Attempt
from turnwise.logs.messages import Call, Message, arguments_of, canonical, error_of, messages_of, number_of


@dataclass(slots=True)
class ToolCall:
    """A call of a tool, with what it returned."""

    start: float
    call: Call
    result: str
    error: str | None


@dataclass(slots=True)
class Calls:
    """What is known of one attempt while its log is read."""

    models: list[tuple[float, list[Message], list[Message]]] = field(default_factory=list)
    tools: list[ToolCall] = field(default_factory=list)
    beginning: tuple[float, Any] = (float("inf"), None)  # the prompt of the first call, before its last response
    whole: tuple[Any, Any] = (None, None)  # the input and the output of the attempt, where the log has no single calls
    outcomes: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    task: str | None = None
    prompt: tuple[float, str] = (float("inf"), "")  # the last one, where a log has prompts as text

    def model(self, start: float, prompt: Any, response: Any) -> None:
        """Add a call of a model."""
        said = messages_of(response)
        for message in said:
            message.role = "assistant" if message.role == "user" else message.role  # a response that is plain text
            message.time = message.time or start
        items = _items(prompt)
        new: list[Message] = []
        end = len(items)
        while end and not (isinstance(items[end - 1], dict) and items[end - 1].get("role") == "assistant"):
            read = messages_of(items[end - 1])
            if any(message.role == "assistant" for message in read):
                break
            new[:0], end = read, end - 1
        if said or new:
            self.models.append((start, new, said))
            if start < self.beginning[0]:
                self.beginning = (start, items[:end])

    def tool(self, start: float, name: Any, arguments: Any, result: Any, error: Any = None, call: Any = "") -> None:
        """Add a call of a tool."""
        text = result if isinstance(result, str) else "" if result is None else canonical(result)
        told = (error if isinstance(error, str) else canonical(error)) if error else None
        error = error_of(told or text, told is not None)
        self.tools.append(ToolCall(start, Call(str(name or "?"), arguments_of(arguments), str(call or "")), text or told or "", error))

    def attempt(self, name: str, stop: str = "") -> Attempt:
        """The attempt with its messages, in the order of time."""
        if not self.models and any(self.whole):
            self.model(0.0, *self.whole)
            if self.tools:  # the single steps are known from the tools
                self.models[0] = (0.0, self.models[0][1], [])
        messages = messages_of(self.beginning[1])
        for message in messages:
            message.given = message.role == "assistant"
        failed = {tool.call.id or tool.result: tool.error for tool in self.tools if tool.error}
        called = any(message.calls for _, _, said in self.models for message in said)
        last = max((start for start, _, _ in self.models), default=0.0)
        steps = [(start, [*new, *said]) for start, new, said in self.models]
        for tool in self.tools:
            result = Message("tool", tool.result, call=tool.call.id, error=tool.error)
            if not called:  # no model's call says what was called
                steps.append((tool.start, [Message("assistant", calls=(tool.call,), time=tool.start), result]))
            elif tool.start > last:  # no later prompt has the result
                steps.append((tool.start, [result]))
        for _, step in sorted(steps, key=lambda step: step[0]):
            for message in step:
                if message.role == "tool" and failed:
                    message.error = message.error or failed.get(message.call) or failed.get(message.text)
            messages += step
        return Attempt(name, messages, self.task, self.outcomes, self.fields, stop)


def _items(prompt: Any) -> list[Any]:
    """The messages of a prompt, one by one, not read yet."""
    while isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    return prompt if isinstance(prompt, list) else [] if prompt is None else [prompt]


def seconds(value: Any) -> float:
    """A time in a log, in seconds: a number, or text in the form of ISO 8601; 0 if it is neither."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return 0.0
    return number_of(value) or 0.0


def chat(value: Any, keys: tuple[str, ...] = ("messages", "input", "prompt")) -> Any:
    """The messages in what a service logged as input or output of a call: under one of the usual names, or the value itself."""
    if isinstance(value, dict):
        for key in keys:
            if isinstance(value.get(key), (list, str, dict)):
                return value[key]
        if isinstance(value.get("choices"), list):
            return [choice.get("message") or choice.get("text") for choice in value["choices"][:1] if isinstance(choice, dict)]
        if isinstance(value.get("generations"), list):
            generations = value["generations"]
            while isinstance(generations, list) and generations:
                generations = generations[0]
            return generations.get("message", generations.get("text")) if isinstance(generations, dict) else None
    return value
