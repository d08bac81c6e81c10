"""What the endpoint's tests share: a tiny model behind an endpoint, and a Qwen-like template with tools."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import agent_tokenizers

from turnwise.agent.chat import Chat
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.engines.base import Engine, Finish, Request, Response, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.serve import Endpoint, Limits, Opened, Recorder
from turnwise.learn.tiny import build_tiny

WORDS = ["hello world the cat sat go north south what is a tool user assistant system name arguments result"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# as Qwen 2.5 and 3 write it: tools in the system message, calls between tags, the results of several calls in one message
QWEN_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}# Tools\n<tools>"
    "{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}{{ '\n' }}</tools>\nFor a call write <tool_call>\n"
    '{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n'
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content }}"
    "{% for call in m.tool_calls %}{% if (loop.first and m.content) or not loop.first %}{{ '\n' }}{% endif %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n"
    "{% elif m.role == 'tool' %}"
    "{% if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' }}{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def tiny() -> tuple[Any, Any]:
    """A model and its tokenizer."""
    return build_tiny(WORDS, layers=2, hidden=32, heads=2, max_length=2048)


def qwen_chat() -> Chat:
    return Chat(agent_tokenizers.tokenizer(QWEN_TOOLS))


def endpoint(sampling: Sampling | None = None, limits: Limits | None = None, **options: Any) -> Endpoint:
    """An endpoint with the tiny model."""
    model, tokenizer = tiny()
    chat = Chat(tokenizer)
    engine = NativeEngine(model, tokenizer, stop_token_ids=chat.stop_ids, cache_memory=1 << 24)
    return Endpoint(engine, chat, sampling or Sampling(max_tokens=8), limits, **options)


class Scripted(Engine):
    """An engine that says what it is told to, in the order of arrival, and keeps the requests."""

    version, reports = 7, ()

    def __init__(self, chat: Chat, *texts: str):
        self.chat, self.texts = chat, list(texts)
        self.requests: list[Request] = []
        self.released: list[int] = []
        self._done: list[Response] = []

    @property
    def pending(self) -> int:
        return len(self._done)

    def submit(self, requests: Any) -> None:
        for request in requests:
            self.requests.append(request)
            ids = (*self.chat.control.encode_response(self.texts.pop(0)), self.chat.stop_ids[0])
            finish, said = Finish.STOP, ids[: request.sampling.max_tokens]
            if len(said) < len(ids):
                finish = Finish.LENGTH
            rule = request.sampling.rule
            if rule is not None:
                watch = rule.watch(None)
                for place, token in enumerate(said):
                    if watch(token, {}):
                        finish, said = Finish.RULE, said[: place + 1]
                        break
            self._done.append(Response(request.key, said, (-0.5,) * len(said), finish, version=self.version))

    def poll(self, wait: bool = True) -> list[Response]:
        done, self._done = self._done, []
        return done

    def release(self, sequence: int) -> None:
        self.released.append(sequence)

    def publish(self, version: int, weights: Any = None) -> None:
        self.version = version

    def refresh(self) -> None: ...

    def close(self) -> None: ...


def scripted(*texts: str, chat: Chat | None = None, **options: Any) -> tuple[Endpoint, Scripted]:
    """An endpoint whose model says these texts, with the Qwen-like template."""
    chat = chat or qwen_chat()
    engine = Scripted(chat, *texts)
    return Endpoint(engine, chat, Sampling(max_tokens=512), **options), engine


def post(opened: Opened, path: str, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """A request with the attempt's key; the answer's status and JSON."""
    address = urlsplit(opened.base_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", address.path + path, data, {"Authorization": f"Bearer {opened.key}", **(headers or {})})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text)


def ask(opened: Opened, messages: list[Any], **more: Any) -> dict[str, Any]:
    """A chat completion that must succeed."""
    status, body = post(opened, "/chat/completions", {"model": "m", "messages": messages, **more})
    assert status == 200, body
    found: dict[str, Any] = body
    return found


def said(answer: Mapping[str, Any], choice: int = 0) -> dict[str, Any]:
    """The assistant's message."""
    found: dict[str, Any] = answer["choices"][choice]["message"]
    return found


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def trajectories(recorder: Recorder) -> list[Trajectory]:
    """The lines of an attempt as trajectories."""
    return [
        Trajectory(
            0,
            f"{recorder.attempt}-{number}",
            turns=[
                Turn(call.anchor or "", call.reward, prompt_ids=call.prompt_ids, response_ids=call.response_ids, logprobs=call.logprobs)
                for call in line
            ],
        )
        for number, line in enumerate(recorder.chains())
    ]
