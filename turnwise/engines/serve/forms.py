"""The two forms of answers: bodies and streams of chat completions (at the end of this file), and the Responses form.

The Responses form has items instead of messages. Requests are read as the conversation that they describe, answers are written as items.

Accepted are messages, function calls and their outputs, `instructions`, function tools, a JSON schema as the text's format, and
`previous_response_id` within an attempt. Reasoning items are left out of the prompt. Tools that a server would have to run itself, files
and stored conversations are rejected.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from turnwise.agent.dialogue import Dialogue
from turnwise.engines.base import Finish
from turnwise.engines.serve.asked import Asked, Refused, arguments_text, read_chat, read_content, shown, text
from turnwise.engines.serve.calls import Call, Limits
from turnwise.engines.serve.live import Live

Json = dict[str, Any]
SCORED = "message.output_text.logprobs"


def read_responses(body: Mapping[str, Any], limits: Limits, earlier: list[Json]) -> Asked:
    """A request of the Responses form, as the chat completion that asks for the same. `earlier` are the messages of the response that it
    continues by id."""
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or len(items) + len(earlier) > limits.messages:
        raise Refused(400, f"input takes a text, or a list of at most {limits.messages} items", param="input")
    messages = list(earlier)
    if isinstance(body.get("instructions"), str) and body["instructions"]:
        rest = messages[1:] if messages and messages[0].get("role") == "system" else messages
        messages = [{"role": "system", "content": body["instructions"]}, *rest]
    before: Any = None
    for index, item in enumerate(items):
        before = _add(messages, item, f"input[{index}]", before)
    if not messages:
        raise Refused(400, "input is empty", param="input")
    form, include = body.get("text"), body.get("include")
    chat = {
        **{name: body.get(name) for name in ("tool_choice", "stop", "temperature", "top_p", "min_p", "top_k", "seed", "stream", "model")},
        "messages": messages,
        "tools": _tools(body.get("tools")),
        "max_tokens": body.get("max_output_tokens"),
        "response_format": form.get("format") if isinstance(form, Mapping) else None,
        "logprobs": body.get("top_logprobs") or (isinstance(include, list) and SCORED in include),
    }
    asked = read_chat(chat, limits)
    asked.form = "responses"
    return asked


def _add(messages: list[Json], item: Any, where: str, before: Any) -> Any:
    """An item as a message, or as a part of the last one: the calls of a turn belong to its text. `before` is the kind of the item before
    it; returns its own."""
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    if kind == "message" and isinstance(item.get("role"), str):
        messages.append({"role": item["role"], "content": read_content(item.get("content"), where)})
    elif kind == "function_call" and isinstance(item.get("name"), str):
        function = {"name": item["name"], "arguments": arguments_text(item.get("arguments"))}
        call = {"id": text(item.get("call_id")), "type": "function", "function": function}
        if before == kind:  # the message was made here
            messages[-1]["tool_calls"].append(call)
        elif messages and messages[-1].get("role") == "assistant":
            messages[-1] = {**messages[-1], "tool_calls": [*messages[-1].get("tool_calls", ()), call]}
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        content = read_content(item.get("output"), where)
        messages.append({"role": "tool", "tool_call_id": text(item.get("call_id")), "content": content})
    elif kind != "reasoning":
        raise Refused(400, f"{where}: messages, function calls and their outputs are taken, not {shown(kind)}", param=where)
    return kind


def _tools(tools: Any) -> Any:
    """Tools in the form of chat completions."""
    if not isinstance(tools, list):
        return tools
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            kind = tool.get("type") if isinstance(tool, Mapping) else None
            raise Refused(400, f"tools[{index}]: functions are taken, not {shown(kind)}", "unsupported_tool", param=f"tools[{index}]")
    return [tool if isinstance(tool.get("function"), Mapping) else {"type": "function", "function": tool} for tool in tools]


def response(live: Live, model: str, done: bool = True) -> Json:
    """The answer; while it is not done, without output."""
    call, asked = live.calls[0], live.asked
    short = call.stop_reason == Finish.LENGTH.value and not call.message.get("tool_calls")
    body: Json = {
        "id": call.id,
        "object": "response",
        "created_at": int(time.time()),
        "status": ("incomplete" if short else "completed") if done else "in_progress",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if done and short else None,
        "instructions": None,
        "max_output_tokens": asked.max_tokens,
        "model": model,
        "output": output(live) if done else [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": asked.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": {"type": "function", "name": asked.tool_choice[1:]} if asked.tool_choice[:1] == "=" else asked.tool_choice,
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in asked.tools],
        "top_p": asked.top_p,
        "usage": _usage(live) if done else None,
    }
    if done and call.problem:
        body["turnwise"] = {"problems": [call.problem]}
    return body


def output(live: Live) -> list[Json]:
    """The items of an answer: its text, then its calls."""
    call = live.calls[0]
    calls = call.message.get("tool_calls", ())
    scored = logprobs(call, live.dialogue)["content"] if live.asked.logprobs else []
    items = [] if calls and not call.message["content"] else [_message(call, call.message["content"] or "", scored)]
    return [*items, *(_function_call(call, index) for index in range(len(calls)))]


def _message(call: Call, content: str, scored: list[Json], status: str = "completed") -> Json:
    parts = [_part(content, scored)] if status == "completed" else []
    return {"id": f"msg_{call.id.partition('_')[2]}", "type": "message", "role": "assistant", "status": status, "content": parts}


def _part(content: str, scored: list[Json]) -> Json:
    return {"type": "output_text", "text": content, "annotations": [], "logprobs": scored}


def _function_call(call: Call, index: int, status: str = "completed") -> Json:
    tool = call.message["tool_calls"][index]
    function = tool["function"]
    return {
        "id": f"fc_{call.id.partition('_')[2]}_{index}",
        "type": "function_call",
        "call_id": tool["id"],
        "name": function["name"],
        "arguments": function["arguments"] if status == "completed" else "",
        "status": status,
    }


def _usage(live: Live) -> Json:
    counted = usage(live.calls)
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }


async def events(live: Live, model: str) -> AsyncIterator[Json]:
    """A stream's events, numbered."""
    number = 0
    async for body in _events(live, model):
        yield {**body, "sequence_number": number}
        number += 1


async def _events(live: Live, model: str) -> AsyncIterator[Json]:
    call = live.calls[0]
    yield {"type": "response.created", "response": response(live, model, done=False)}
    yield {"type": "response.in_progress", "response": response(live, model, done=False)}
    opened = False
    where = {"item_id": f"msg_{call.id.partition('_')[2]}", "output_index": 0, "content_index": 0}

    def opening() -> list[Json]:
        return [
            {"type": "response.output_item.added", "output_index": 0, "item": _message(call, "", [], "in_progress")},
            {"type": "response.content_part.added", **where, "part": _part("", [])},
        ]

    async for _, piece in live.texts():
        for body in () if opened else opening():
            yield body
        opened = True
        yield {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []}
    if live.refused is not None:
        yield {"type": "error", "code": live.refused.code, "message": str(live.refused), "param": None}
        return
    for index, item in enumerate(output(live)):
        if item["type"] == "message":
            for body in () if opened else opening():
                yield body
            for body in _text_end(live, where, item):
                yield body
        else:
            for body in _call_events(call, index, item):
                yield body
    whole = response(live, model)
    yield {"type": f"response.{whole['status']}", "response": whole}


def _text_end(live: Live, where: Json, item: Json) -> list[Json]:
    part = item["content"][0]
    rest = live.rest(0)
    return [
        *([{"type": "response.output_text.delta", **where, "delta": rest, "logprobs": []}] if rest else []),
        {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": part["logprobs"]},
        {"type": "response.content_part.done", **where, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    ]


def _call_events(call: Call, index: int, item: Json) -> list[Json]:
    number = int(item["id"].rpartition("_")[2])
    where = {"item_id": item["id"], "output_index": index}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": _function_call(call, number, "in_progress")},
        {"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]},
        {"type": "response.function_call_arguments.done", **where, "name": item["name"], "arguments": item["arguments"]},
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def completion(asked: Asked, calls: Sequence[Call], model: str, dialogue: Dialogue) -> dict[str, Any]:
    """The whole answer."""
    choices = [
        {
            "index": index,
            "message": call.message,
            "logprobs": logprobs(call, dialogue) if asked.logprobs else None,
            "finish_reason": finish_reason(call),
        }
        for index, call in enumerate(calls)
    ]
    body = {**head(calls[0], "chat.completion", model), "choices": choices, "usage": usage(calls)}
    body["system_fingerprint"] = f"version-{calls[0].version}"
    if problems := [call.problem for call in calls if call.problem]:
        body["turnwise"] = {"problems": problems}
    return body


def head(call: Call, kind: str, model: str) -> dict[str, Any]:
    """What every answer and every part of a stream begins with."""
    return {"id": call.id, "object": kind, "created": int(time.time()), "model": model}


def finish_reason(call: Call) -> str:
    if call.message.get("tool_calls"):
        return "tool_calls"
    return "length" if call.stop_reason == Finish.LENGTH.value else "stop"


def usage(calls: Sequence[Call]) -> dict[str, Any]:
    prompt, sampled = len(calls[0].prompt_ids), sum(len(call.response_ids) for call in calls)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def logprobs(call: Call, dialogue: Dialogue) -> dict[str, Any]:
    """The sampled tokens with their log-probs. Alternatives are not known, so `top_logprobs` is empty."""
    scored = []
    for token, logprob in zip(call.response_ids, call.logprobs, strict=True):
        text = dialogue.chat.tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        scored.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return {"content": scored, "refusal": None}


async def chunks(live: Live, model: str) -> AsyncIterator[dict[str, Any]]:
    """The parts of a stream: text as it is sampled, then tool calls, the finish reason, and usage if it was requested."""
    asked, first = live.asked, live.calls[0]
    start = {**head(first, "chat.completion.chunk", model), **({"usage": None} if asked.stream_usage else {})}

    def part(choice: int, delta: dict[str, Any], reason: str | None = None, scored: Any = None) -> dict[str, Any]:
        return {**start, "choices": [{"index": choice, "delta": delta, "logprobs": scored, "finish_reason": reason}]}

    for choice in range(asked.n):
        yield part(choice, {"role": "assistant", "content": "", "refusal": None})
    async for choice, added in live.texts():
        yield part(choice, {"content": added})
    if live.refused is not None:
        yield live.refused.body()
        return
    for choice, call in enumerate(live.calls):
        if text := live.rest(choice):
            yield part(choice, {"content": text})
        for index, tool in enumerate(call.message.get("tool_calls", ())):
            yield part(choice, {"tool_calls": [{"index": index, **tool}]})
        yield part(choice, {}, finish_reason(call), logprobs(call, live.dialogue) if asked.logprobs else None)
    if asked.stream_usage:
        yield {**start, "choices": [], "usage": usage(live.calls)}
