"""Answers of chat completions: bodies and streams."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from turnwise.agent.dialogue import Dialogue
from turnwise.engines.base import Finish
from turnwise.engines.serve.calls import Call
from turnwise.engines.serve.live import Live


def completion(live: Live, model: str) -> dict[str, Any]:
    """The whole answer."""
    calls = live.calls
    choices = [
        {
            "index": index,
            "message": call.message,
            "logprobs": logprobs(call, live.dialogue) if live.asked.logprobs else None,
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
