"""Reads the body of a request. Clients send nulls, content as a list of parts, and additional keys; all of that is accepted.

Other input is rejected with a status and a message in OpenAI's form, which never reveals more than the client sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise.agent.dialogue import JSON_REQUEST, SCHEMA_REQUEST, Said
from turnwise.agent.text import well_formed
from turnwise.agent.tool_calls import ToolCall
from turnwise.engines.serve.calls import Limits
from turnwise.util.control_strings import deeper_than, each_text

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
SHOWN = 80  # characters of a wrong value in a message
DEEPEST = 100  # levels of a body
LONGEST_STOP = 256  # characters of a stop string


class Refused(Exception):
    """A request that cannot be answered: the HTTP status, and what OpenAI's error object says."""

    def __init__(self, status: int, message: str, code: str | None = None, kind: str = "invalid_request_error", param: str | None = None):
        super().__init__(message)
        self.status, self.code, self.kind, self.param = status, code, kind, param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


@dataclass(slots=True)
class Asked:
    """What a call asks for. `messages` are the client's own, as sent; `said` the same for the template. `tool_choice` is auto, none,
    required, or `=NAME` for one tool. `schema` is what the answer's JSON must match; `json_only` is true if it must be any JSON object."""

    messages: list[dict[str, Any]]
    said: list[Said]
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str = "auto"
    schema: dict[str, Any] | None = None
    json_only: bool = False
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = 1
    logprobs: bool = False
    stream: bool = False
    stream_usage: bool = False
    model: str = ""
    form: str = "chat"
    large: bool = False  # of the body
    digests: list[bytes] = field(default_factory=list)  # of the conversation: before its first message, and after each

    @property
    def names(self) -> frozenset[str]:
        """The tools that may be called."""
        if self.tool_choice == "none":
            return frozenset()
        if self.tool_choice.startswith("="):
            return frozenset([self.tool_choice[1:]])
        return frozenset(tool["function"]["name"] for tool in self.tools)

    @property
    def request(self) -> str:
        """What the prompt says about the form of the answer."""
        if self.schema is not None:
            return SCHEMA_REQUEST.format(schema=json.dumps(self.schema, ensure_ascii=False))
        return JSON_REQUEST if self.json_only else ""


def load_body(body: bytes) -> dict[str, Any]:
    """The body as a JSON object."""
    try:
        value = json.loads(body, parse_constant=_no_number, parse_float=_finite)
        if deeper_than(DEEPEST, value):
            raise Refused(400, f"the body is nested more than {DEEPEST} levels deep")
        if b"\\ud" in body.lower():  # perhaps half a character, which no file and no tokenizer takes
            value = each_text(value, well_formed)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise Refused(400, "the body must be a JSON object")
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _no_number(digits)


def read_chat(body: Mapping[str, Any], limits: Limits) -> Asked:
    """A request of chat completions."""
    raw = body.get("messages")
    if not isinstance(raw, list) or not raw:
        raise Refused(400, "messages must be a list with at least one message", param="messages")
    if len(raw) > limits.messages:
        raise Refused(400, f"{len(raw)} messages are more than the {limits.messages} that are taken", param="messages")
    said = [read_message(one, place) for place, one in enumerate(raw)]
    tools = read_tools(body.get("tools"), limits)
    tokens = body.get("max_completion_tokens")
    asked = Asked(raw, said, tools, read_choice(body.get("tool_choice"), tools))
    asked.max_tokens = whole(tokens if tokens is not None else body.get("max_tokens"), "max_tokens", 1)
    asked.n = whole(body.get("n"), "n", 1) or 1
    asked.logprobs = bool(body.get("logprobs"))
    asked.stop = read_stop(body.get("stop"))
    asked.schema, asked.json_only = read_format(body.get("response_format"))
    options = body.get("stream_options")
    asked.stream_usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
    size = len(asked.request) + (len(json.dumps(asked.tools, ensure_ascii=False)) if asked.tools else 0)
    if size > limits.schema_bytes:
        most = limits.schema_bytes
        raise Refused(413, f"tools and schema have {size} characters, more than the {most} that are taken", "schema_too_large")
    asked.temperature = number(body.get("temperature"), "temperature", 0, 1e6)
    asked.top_p = number(body.get("top_p"), "top_p", 0, 1)
    asked.min_p = number(body.get("min_p"), "min_p", 0, 1)
    asked.top_k = whole(body.get("top_k"), "top_k", -1)
    asked.seed = whole(body.get("seed"), "seed", None)
    asked.stream = bool(body.get("stream"))
    asked.model = body["model"][:200] if isinstance(body.get("model"), str) else ""
    return asked


def read_message(message: Any, index: int) -> Said:
    """One message of chat completions."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise Refused(400, f"{where} must be an object with role and content", param=where)
    role = ROLES.get(message["role"]) if isinstance(message.get("role"), str) else None
    if role is None:
        raise Refused(400, f"{where}.role must be one of {', '.join(ROLES)}", param=where)
    content = read_content(message.get("content"), where)
    calls = message.get("tool_calls")
    tool_calls: tuple[ToolCall, ...] = ()
    if calls is not None and role == "assistant":
        if not isinstance(calls, list):
            raise Refused(400, f"{where}.tool_calls must be a list", param=where)
        tool_calls = tuple(read_call(one, f"{where}.tool_calls[{number}]") for number, one in enumerate(calls))
    return Said(role, content, tool_calls, text(message.get("tool_call_id")), text(message.get("name")))


def read_content(content: Any, where: str) -> str:
    """Content as text: null is empty, and parts of text are joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused(400, f"{where}.content must be a text, null or a list of parts", param=where)
    parts: list[str] = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, Mapping) and kind in TEXT_PARTS:
            inner = part.get("text", part.get("refusal"))
            parts.append(inner if isinstance(inner, str) else "")
        else:
            raise Refused(400, f"{where}.content: parts of text are taken, not {shown(kind)}", "unsupported_content", param=where)
    return "".join(parts)


def read_call(call: Any, where: str) -> ToolCall:
    """A tool call in a message of the assistant."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Refused(400, f"{where} must have a function with a name and arguments", param=where)
    return ToolCall(function["name"], arguments_text(function.get("arguments")), text(call.get("id")))


def arguments_text(arguments: Any) -> str:
    """Arguments as JSON text; a few clients send the object itself."""
    if isinstance(arguments, str):
        return arguments
    return "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)


def read_tools(tools: Any, limits: Limits) -> list[dict[str, Any]]:
    """Tools in OpenAI's form. Only functions can be called here."""
    if tools is None:
        return []
    if not isinstance(tools, list) or len(tools) > limits.tools:
        raise Refused(400, f"tools must be a list of at most {limits.tools} functions", param="tools")
    functions = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise Refused(400, f"tools[{index}] must be a function with a name", param=f"tools[{index}]")
        fields = {name: function[name] for name in ("name", "description", "parameters") if function.get(name) is not None}
        fields["description"] = fields["description"] if isinstance(fields.get("description"), str) else ""
        if not isinstance(fields.get("parameters"), Mapping):
            fields["parameters"] = {"type": "object", "properties": {}}
        functions.append({"type": "function", "function": fields})
    return functions


def read_choice(choice: Any, tools: list[dict[str, Any]]) -> str:
    """`tool_choice`: auto, none, required or `=NAME`."""
    if choice is None:
        return "auto"
    named: Any = choice
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        named = function.get("name") if isinstance(function, Mapping) else None
        if named is None:  # allowed_tools and the like
            return "required" if choice.get("mode") == "required" else "auto"
        if named not in {tool["function"]["name"] for tool in tools}:
            raise Refused(400, f"tool_choice names {shown(named)}, which is not among the tools", param="tool_choice")
        return f"={named}"
    if choice not in ("auto", "none", "required", "any"):
        raise Refused(400, f"tool_choice takes auto, none, required or a tool, not {shown(choice)}", param="tool_choice")
    if choice in ("required", "any"):
        return "required" if tools else "auto"
    return str(choice)


def read_format(form: Any) -> tuple[dict[str, Any] | None, bool]:
    """`response_format`: a JSON schema, and whether any JSON object is asked for."""
    if form is None:
        return None, False
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind == "text":
        return None, False
    if kind == "json_object":
        return None, True
    if kind != "json_schema" or not isinstance(form, Mapping):
        raise Refused(400, f"response_format takes text, json_object or json_schema, not {shown(kind)}", param="response_format")
    outer = form.get("json_schema", form)
    schema = outer.get("schema") if isinstance(outer, Mapping) else None
    if not isinstance(schema, dict):
        raise Refused(400, "response_format.json_schema needs a schema, which is an object", param="response_format")
    return schema, False


def read_stop(stop: Any) -> tuple[str, ...]:
    """Stop strings; empty ones are left out."""
    if stop is None:
        return ()
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or len(strings) > 64 or not all(isinstance(one, str) and len(one) <= LONGEST_STOP for one in strings):
        raise Refused(400, f"stop takes a text or a list of at most 64 texts, each of at most {LONGEST_STOP} characters", param="stop")
    return tuple(one for one in strings if one)


def whole(value: Any, name: str, low: int | None) -> int | None:
    """An integer, or None."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or (low is not None and value < low) or abs(value) >= 1 << 63:
        raise Refused(400, f"{name} takes an integer{'' if low is None else f' of at least {low}'}, not {shown(value)}", param=name)
    return value


def number(value: Any, name: str, low: float, high: float) -> float | None:
    """A finite number, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high or not math.isfinite(value):
        raise Refused(400, f"{name} takes a number from {low:g} to {high:g}, not {shown(value)}", param=name)
    return float(value)


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def shown(value: Any) -> str:
    """A wrong value, shortened for a message."""
    try:
        return repr(value)[:SHOWN]
    except (ValueError, RecursionError):  # an integer of many thousand digits
        return type(value).__name__
