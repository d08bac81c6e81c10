"""OpenTelemetry with the GenAI conventions, as OTLP JSON (the collector's file exporter, or what was sent to a collector).

The messages of a call are read wherever the conventions have kept them: attributes of the span (`gen_ai.input.messages`), the event with
the operation's details, one event per message (`gen_ai.user.message`, `gen_ai.choice`) on the span or as a log record, and numbered
attributes (`gen_ai.prompt.0.content`). The outcome is an event `gen_ai.evaluation.result`, or an attribute that `--outcome` names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from turnwise.logs.attempts import Attempt
from turnwise.logs.calls import Calls
from turnwise.logs.files import Record
from turnwise.logs.messages import fields_of, items_of, loaded

MODEL = ("chat", "text_completion", "generate_content", "completion", "responses")
NUMBERED = re.compile(r"gen_ai\.(prompt|completion)\.(\d{1,4})\.(?:(role|content)|tool_calls\.(\d{1,3})\.(name|arguments|id))$")
LARGE = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.prompt", "gen_ai.completion", "gen_ai.tool.call")
INTEGER = re.compile(r"-?[0-9]{1,20}")
DEEPEST = 50  # lists and structures inside of each other
SIGNALS = {"resourceSpans": ("scopeSpans", "spans"), "resourceLogs": ("scopeLogs", "logRecords")}


def is_otlp(value: Any) -> bool:
    """Whether this is a message of OTLP with spans or log records."""
    return isinstance(value, dict) and any(isinstance(value.get(signal), list) for signal in SIGNALS)


def read(records: Iterable[Record]) -> Iterator[Attempt]:
    """One attempt per conversation (`gen_ai.conversation.id`), or per trace where no conversation is named."""
    conversation: dict[str, str] = {}
    events: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    traces: dict[str, Calls] = {}
    for record in records:
        for signal, row in _rows(record.value):
            trace, span = str(row.get("traceId") or ""), str(row.get("spanId") or "")
            attributes = _attributes(row)
            if "gen_ai.conversation.id" in attributes:
                conversation.setdefault(trace, str(attributes["gen_ai.conversation.id"]))
            calls = traces.setdefault(trace, Calls())
            if signal == "resourceLogs":
                events[trace, span].append(row)
                continue
            if with_span := items_of(row.get("events")):
                events[trace, span] += [event for event in with_span if isinstance(event, dict)]
            _add(calls, row, attributes)
    for (trace, _), of_span in events.items():
        _add_events(traces[trace], of_span)
    attempts: dict[str, Calls] = {}
    for trace, calls in traces.items():
        name = conversation.get(trace, trace)
        attempts[name] = _joined(attempts[name], calls) if name in attempts else calls
    yield from (calls.attempt(name) for name, calls in attempts.items())


def _add(calls: Calls, span: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    start = _seconds(span.get("startTimeUnixNano"))
    operation = attributes.get("gen_ai.operation.name") or attributes.get("llm.request.type")
    if operation == "execute_tool" or "gen_ai.tool.call.arguments" in attributes:
        message = fields_of(span.get("status")).get("message")
        error = (message or attributes["error.type"]) if attributes.get("error.type") else None
        result, given = attributes.get("gen_ai.tool.call.result"), attributes.get("gen_ai.tool.call.arguments")
        calls.tool(start, attributes.get("gen_ai.tool.name"), given, result, error, attributes.get("gen_ai.tool.call.id"))
    elif operation in MODEL or operation is None:
        _add_call(calls, start, attributes)
    elif operation == "invoke_agent":
        calls.whole = (loaded(attributes.get("gen_ai.input.messages")), loaded(attributes.get("gen_ai.output.messages")))
    is_root = not span.get("parentSpanId")
    calls.fields |= {key: value for key, value in attributes.items() if (is_root or key not in calls.fields) and not key.startswith(LARGE)}


def _add_call(calls: Calls, start: float, attributes: Mapping[str, Any]) -> None:
    """A call of a model whose messages are attributes: as a whole, or numbered."""
    given = _continued(calls, start, attributes.get("gen_ai.input.messages", attributes.get("gen_ai.prompt")))
    done = loaded(attributes.get("gen_ai.output.messages", attributes.get("gen_ai.completion")))
    if given is None and done is None:
        given, done = _numbered(attributes)
    if given or done:
        instructions = loaded(attributes.get("gen_ai.system_instructions"))
        system = [{"role": "system", "parts": instructions}] if isinstance(instructions, list) else []
        calls.model(start, system + (given if isinstance(given, list) else [given] if given else []), done)


def _continued(calls: Calls, start: float, text: Any) -> Any:
    """The messages of a prompt. Of one that continues the prompt before it, only what it adds: most of a log is such repetition."""
    before, last = calls.prompt
    if not isinstance(text, str):
        return text
    calls.prompt = (start, text)
    if before <= start and last.endswith("]") and text.startswith(",", len(last) - 1) and text.startswith(last[:-1]):
        return loaded(f"[{text[len(last) :]}")
    return loaded(text)


def _numbered(attributes: Mapping[str, Any]) -> tuple[Any, Any]:
    sides: dict[str, dict[int, dict[str, Any]]] = {"prompt": {}, "completion": {}}
    for key, value in attributes.items():
        if match := NUMBERED.match(key):
            message = sides[match[1]].setdefault(int(match[2]), {"role": "assistant" if match[1] == "completion" else "user"})
            if match[3]:
                message[match[3]] = loaded(value) if match[3] == "content" else value
            else:
                message.setdefault("calls", {}).setdefault(int(match[4]), {})[match[5]] = value
    for message in (message for side in sides.values() for message in side.values()):
        message["tool_calls"] = [call for _, call in sorted(message.pop("calls", {}).items())]
    return tuple([message for _, message in sorted(side.items())] for side in sides.values())  # type: ignore[return-value]


def _add_events(calls: Calls, events: list[Mapping[str, Any]]) -> None:
    """The events of one span: the messages of a call, or an evaluation."""
    prompt: list[Any] = []
    start = 0.0
    for event in sorted(events, key=_time):  # stable: events of one moment stay in order
        attributes = _attributes(event)
        name = str(event.get("eventName") or event.get("name") or attributes.get("event.name") or "")
        body = _value(event.get("body"))
        body = body if isinstance(body, dict) else {key: loaded(value) for key, value in attributes.items()}
        start = start or _time(event)
        if name == "gen_ai.evaluation.result":
            told = attributes.get("gen_ai.evaluation.score.value")
            label = attributes.get("gen_ai.evaluation.score.label")
            calls.outcomes[str(attributes.get("gen_ai.evaluation.name") or "score")] = label if told is None else told
        elif name == "gen_ai.client.inference.operation.details" or name.startswith("gen_ai.content."):
            _add_call(calls, start, attributes)
        elif name == "gen_ai.choice":
            message = body.get("message", body)
            calls.model(start, prompt, message if isinstance(message, dict) else {"role": "assistant", "content": message})
            prompt, start = [], 0.0
        elif name.startswith("gen_ai.") and name.endswith(".message"):
            prompt.append({"role": name.split(".")[1], **body})


def _joined(one: Calls, other: Calls) -> Calls:
    first = min(one, other, key=lambda calls: calls.beginning[0])
    fields, outcomes = other.fields | one.fields, one.outcomes | other.outcomes
    return Calls(one.models + other.models, one.tools + other.tools, first.beginning, first.whole, outcomes, fields)


def _rows(value: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The spans and log records of a message."""
    for signal, (scopes, rows) in SIGNALS.items():
        for resource in items_of(value.get(signal)):
            for scope in items_of(fields_of(resource).get(scopes)):
                yield from ((signal, row) for row in items_of(fields_of(scope).get(rows)) if isinstance(row, dict))


def _attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    return _structure(row.get("attributes"))


def _structure(pairs: Any, depth: int = 0) -> dict[str, Any]:
    return {str(pair["key"]): _value(pair.get("value"), depth) for pair in items_of(pairs) if isinstance(pair, dict) and "key" in pair}


def _value(value: Any, depth: int = 0) -> Any:
    """A value of OTLP (`AnyValue`) as plain data. 64-bit integers are text there."""
    if not isinstance(value, dict) or not value or depth > DEEPEST:
        return None
    kind, inner = next(iter(value.items()))
    if kind == "intValue":
        return int(str(inner)) if INTEGER.fullmatch(str(inner)) else None
    if kind == "arrayValue":
        return [_value(each, depth + 1) for each in items_of(fields_of(inner).get("values"))]
    if kind == "kvlistValue":
        return _structure(fields_of(inner).get("values"), depth + 1)
    return inner


def _time(event: Mapping[str, Any]) -> float:
    return _seconds(event.get("timeUnixNano") or event.get("observedTimeUnixNano"))


def _seconds(nanoseconds: Any) -> float:
    text = str(nanoseconds or 0)
    return int(text) / 1e9 if INTEGER.fullmatch(text) else 0.0
