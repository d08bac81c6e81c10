"""Any OpenAI-compatible server as an engine, for evaluation.

Not for training: a server's text is re-encoded (for the records), its log-probs are at its own temperature and precision or missing, and
its weights are not the learner's. Its purpose is to measure a model that is served elsewhere on the same tasks, with the same prompts, by
the same collector.

Requests run in a few threads, each with a time limit for the whole exchange. Temporary failures (429, 5xx, a lost connection, a timeout,
an answer that is not JSON) are retried with growing pauses and random jitter, so that many clients do not come back together;
`Retry-After` is honoured. A permanent failure is a fault of that request alone, with the server's message.

Text from outside stays text (`agent/control.py`). Token ids (form `ids`) are exact. Messages and texts are tokenised again by the server,
so anything in them that only looks like a control token gets an invisible space inside.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Literal

from turnwise.agent.control import Control
from turnwise.engines.base import Finish, Request, Response
from turnwise.engines.registry import OpenAI, register
from turnwise.engines.reports import refuse
from turnwise.util.control_strings import each_text, unbordered
from turnwise.util.errors import TurnwiseError
from turnwise.util.secret import redact
from turnwise.util.transport import Failure, Transport

Form = Literal["auto", "chat", "text", "ids"]
STEP_SECONDS = 0.02  # seconds that a poll without waiting takes, so that polling is not a busy loop
TOO_LONG = ("context_length_exceeded", "maximum context length", "context length", "max_model_len", "too long")


@dataclass(frozen=True, slots=True)
class Server:
    """Where the server is and how to talk to it.

    `form` says what is sent: `chat` the request's messages, `text` the prompt decoded by the tokenizer, `ids` the token ids themselves
    (vLLM and some others take them; the only exact form), `auto` the first of chat, text and ids that is available. `key_variable` names
    the environment variable with the API key, none if the server needs none. `extra` is added to every request's body, `omit` is left out
    of it. `timeout` is for one whole exchange; `longest_wait` is the longest pause between two tries.
    """

    url: str
    model: str
    form: Form = "auto"
    key_variable: str = ""
    concurrency: int = 16
    timeout: float = 120.0
    retries: int = 5
    first_wait: float = 0.5
    longest_wait: float = 60.0
    logprobs: bool = False
    limit_field: str = "max_tokens"
    extra: Mapping[str, Any] = field(default_factory=dict)
    omit: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, good in (
            ("form", self.form in ("auto", "chat", "text", "ids")),
            ("model", bool(self.model)),
            ("concurrency", self.concurrency >= 1),
            ("timeout", self.timeout > 0),
            ("retries", self.retries >= 0),
            ("first_wait", self.first_wait >= 0),
            ("longest_wait", self.longest_wait >= 0),
        ):
            if not good:
                raise TurnwiseError(f"server {redact(self.url)!r}: {name} cannot be {getattr(self, name)!r}")

    def key(self) -> str:
        if not self.key_variable:
            return ""
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise TurnwiseError(
                f"server {redact(self.url)!r}: its API key is read from {self.key_variable}, which is not set in the environment"
            )
        return key


@register("openai")
class OpenAIEngine(OpenAI):
    """A server that speaks the OpenAI protocol, for evaluation only.

    `tokenizer` decodes prompts (form `text`) and re-encodes responses for the records; chat needs none."""

    def __init__(self, server: Server, tokenizer: Any = None):
        if server.form == "text" and tokenizer is None:
            raise TurnwiseError(
                f"server {redact(server.url)!r}: form 'text' needs a tokenizer to decode the prompts; use 'chat' or 'ids' without"
            )
        self.server, self.tokenizer = server, tokenizer
        self._control = Control(tokenizer) if tokenizer is not None else None
        self._transport = Transport(server.url, server.key(), server.timeout)
        self._waiting: SimpleQueue[Request | None] = SimpleQueue()
        self._answered: SimpleQueue[Response] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._pending = 0
        self._chance = random.Random()  # a separate one: waiting must not disturb a generator that results depend on

    @property
    def pending(self) -> int:
        return self._pending

    def submit(self, requests: Sequence[Request]) -> None:
        if self._closed.is_set():
            raise TurnwiseError("this engine is closed")
        for request in requests:
            refuse(request.sampling.report, self.reports, f"the server {redact(self.server.url)!r}")
            if request.sampling.rule is not None:
                raise TurnwiseError("a server cannot ask a stop rule while it draws: use the native or the transformers engine")
            self._waiting.put(request)
            self._pending += 1
        while len(self._threads) < min(self.server.concurrency, self._pending):
            # A daemon: a server that hangs must not keep the program from ending.
            thread = threading.Thread(target=self._work, name=f"openai-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def poll(self, wait: bool = True) -> list[Response]:
        if not self._pending:
            return []
        try:
            responses = [self._answered.get(timeout=None if wait else STEP_SECONDS)]
        except Empty:
            return []
        while True:
            try:
                responses.append(self._answered.get_nowait())
            except Empty:
                self._pending -= len(responses)
                return responses

    def publish(self, version: int, weights: Mapping[str, Any] | None = None) -> None:
        raise TurnwiseError(
            f"the server {redact(self.server.url)!r} has its own weights, which cannot be replaced from here: train with an engine in "
            "this process (engine.name native or transformers)"
        )

    def close(self) -> None:
        """Abandon what is under way. A second call does nothing."""
        if not self._closed.is_set():
            self._closed.set()
            self._transport.close()
            for _ in self._threads:
                self._waiting.put(None)
            self._pending = 0

    def _work(self) -> None:
        while (request := self._waiting.get()) is not None and not self._closed.is_set():
            try:
                response = self._answer(request)
            except Exception as error:  # whatever happens, a request that was taken is answered
                response = Response(request.key, finish=Finish.FAULT, message=f"{type(error).__name__}: {error}")
            self._answered.put(response)

    def _answer(self, request: Request) -> Response:
        chat, body = self._body(request)
        path = "chat/completions" if chat else "completions"
        try:
            answer = self._insist(path, body)
            return self._read(request, answer, chat)
        except Failure as failure:
            too_long = failure.status in (400, 413, 422) and any(words in str(failure).lower() for words in TOO_LONG)
            return Response(
                request.key, finish=Finish.REFUSED if too_long else Finish.FAULT, message=f"{redact(self.server.url)}: {failure}"
            )

    def _insist(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The server's answer, with as many retries as are allowed."""
        for attempt in range(self.server.retries + 1):
            try:
                answer = self._transport.post(path, body)
                if not isinstance(answer.get("choices"), list) or not answer["choices"]:
                    raise Failure(f"an answer without choices: {json.dumps(answer)[:300]}", passing=True)
                return answer
            except Failure as failure:
                if not failure.passing or self._closed.is_set():
                    raise
                wait = self._wait(attempt, failure)
                if attempt == self.server.retries:
                    raise Failure(f"{failure} (tried {attempt + 1} times)", status=failure.status) from None
                self._closed.wait(wait)
        raise AssertionError("unreachable: the last try returns or raises")

    def _wait(self, attempt: int, failure: Failure) -> float:
        if failure.retry_after is not None:
            if failure.retry_after > self.server.longest_wait:
                raise Failure(f"{failure} (asks to wait {failure.retry_after:g} s, more than longest_wait={self.server.longest_wait:g})")
            return failure.retry_after
        return min(self.server.first_wait * 2.0**attempt, self.server.longest_wait) * self._chance.uniform(0.5, 1.0)

    def _body(self, request: Request) -> tuple[bool, dict[str, Any]]:
        """Whether it is a chat, and what is sent. Settings without effect are left out: not every server knows them."""
        form = self.server.form
        if form == "auto":
            form = "chat" if request.messages is not None else "text" if self.tokenizer is not None else "ids"
        sampling = request.sampling
        body: dict[str, Any] = {"model": self.server.model}
        if form == "chat":
            if request.messages is None:
                raise Failure("form 'chat' needs a request with messages, and this one has token ids alone: use form 'text' or 'ids'")
            body["messages"] = [each_text(dict(message), unbordered) for message in request.messages]
        elif form == "text":
            assert self._control is not None
            body["prompt"] = self._control.decode(request.prompt_ids)
        else:
            body["prompt"] = [int(token) for token in request.prompt_ids]
        body |= {self.server.limit_field: sampling.max_tokens, "temperature": sampling.temperature, "seed": request.seed % 2**31}
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.min_p:
            body["min_p"] = sampling.min_p
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if self.server.logprobs:
            body["logprobs"] = True if form == "chat" else 1
        body |= self.server.extra
        return form == "chat", {name: value for name, value in body.items() if name not in self.server.omit}

    def _read(self, request: Request, answer: Mapping[str, Any], chat: bool) -> Response:
        """The first choice as a response. Exact token ids if the server gives them, re-encoded text otherwise."""
        choice = answer["choices"][0]
        try:
            text = choice["message"]["content"] if chat else choice["text"]
            text = ("" if text is None else str(text)) + (_tool_calls(choice["message"]) if chat else "")
            reason = choice.get("finish_reason")
        except (KeyError, TypeError, AttributeError):
            raise Failure(f"an answer that is not a {'chat ' if chat else ''}completion: {json.dumps(choice)[:300]}") from None
        stopped_at = choice.get("stop_reason")
        if isinstance(stopped_at, str) and stopped_at in request.sampling.stop and not text.endswith(stopped_at):
            text += stopped_at  # servers cut the stop string off; a response of ours has it
        ids = choice.get("token_ids")
        if not (isinstance(ids, list) and all(isinstance(token, int) for token in ids)):
            ids = self._control.encode_response(text) if self._control is not None else []
        finish = Finish.LENGTH if reason == "length" else Finish.STOP
        message = "" if reason in ("stop", "length") else str(reason)
        return Response(request.key, tuple(ids), _logprobs(choice, len(ids)), finish, message, text)


def _tool_calls(message: Mapping[str, Any]) -> str:
    """Calls that the server has taken out of the text, in the form in which models write them."""
    text = ""
    for call in message.get("tool_calls") or ():
        body = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        text += f"\n<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"
    return text


def _logprobs(choice: Mapping[str, Any], n: int) -> tuple[float, ...]:
    """The log-probs that the server gave, if there is one per token."""
    scores = choice.get("logprobs")
    if not isinstance(scores, dict):
        return ()
    logprobs = scores.get("token_logprobs")
    if logprobs is None and isinstance(scores.get("content"), list):
        logprobs = [entry.get("logprob") for entry in scores["content"] if isinstance(entry, dict)]
    if isinstance(logprobs, list) and len(logprobs) == n and all(isinstance(value, (int, float)) for value in logprobs):
        return tuple(float(value) for value in logprobs)
    return ()
